// The error file, the terminate handler and the signal handler. What runs in the signal handler
// uses only memory that was set aside before and calls that are safe there.
#include "worker/error_file.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <string_view>
#include <typeinfo>

#include "rendezvous/unique_fd.h"
#include "worker/life_lock.h"
#include "worker/stack_page.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t path_bytes_max = 4096;
constexpr std::size_t stack_text_bytes_max = 32'768;
constexpr int frames_max = 64;
constexpr int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Two, because a thread may fail while another changes the place: a pair that somebody may read is
// not written to before the attempt after the next.
struct ErrorPlace {
  char final_path[path_bytes_max];
  char temporary_path[path_bytes_max];
  pid_t owner;  // A child that it forks inherits the handlers, but its crash is not the worker's.
};
ErrorPlace error_places[2];
std::atomic<int> error_place{0};
// Written once by install_error_handlers(), only read afterwards.
int scratch_fd = -1;  // A memory file through which the symbolised stack passes.
char stack_text[stack_text_bytes_max];
char handler_stack[65'536];

// The thread that fails first tells of what, and its end is the process's. Others that fail
// meanwhile, of the same cause as a rule, wait for it: by their own the file would stay half
// written.
std::atomic<pid_t> failing_thread{0};
std::atomic<pid_t> recording_thread{0};  // The one that writes the error file, or has.
std::atomic<bool> recorded{false};
std::atomic<bool> lost{false};  // What was recorded could not be written.
constexpr int wait_for_other_thread_ms = 10'000;

pid_t own_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// Whether the calling thread is the first to ask for it.
bool takes(std::atomic<pid_t>& role) {
  pid_t nobody = 0;
  return role.compare_exchange_strong(nobody, own_thread());
}

// Until `done`, or for good where that is null, in so far as the other thread ends the process.
void wait_for_other_thread(const std::atomic<bool>* done) {
  for (int ms = 0; ms < wait_for_other_thread_ms && (done == nullptr || !*done); ++ms) {
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

// Whether the calling thread is to write the error file. If not, it is there afterwards.
bool is_to_record() {
  if (takes(recording_thread)) return true;
  if (recording_thread != own_thread()) wait_for_other_thread(&recorded);
  return false;
}

// As strict as the readers are (RFC 3629): a file with an overlong form, half of a surrogate pair
// or a number that is no character would not be JSON to them, and the cause would be lost.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80         ? 1
                               : byte >> 5 == 0x06 ? 2
                               : byte >> 4 == 0x0e ? 3
                               : byte >> 3 == 0x1e ? 4
                                                   : 0;
    if (length == 0 || i + length > text.size()) return false;
    std::uint32_t character = length == 1 ? byte : byte & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      character = character << 6 | (next & 0x3f);
    }
    constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // By length.
    const bool surrogate = character >= 0xd800 && character <= 0xdfff;
    if (character < least[length] || character > 0x10ffff || surrogate) return false;
    i += length;
  }
  return true;
}

// A JSON document written piece by piece without allocating.
class JsonFile {
 public:
  explicit JsonFile(const char* path)
      : fd_(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)), failed_(!fd_) {}

  void raw(std::string_view text) {
    for (char c : text) put(c);
  }
  void string(std::string_view text) {
    const bool utf8 = is_utf8(text);
    constexpr char digits[] = "0123456789abcdef";
    for (char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        put('\\');
        put(c);
      } else if (c == '\n') {
        raw("\\n");
      } else if (byte < 0x20 || byte == 0x7f) {
        raw("\\u00");
        put(digits[byte >> 4]);
        put(digits[byte & 15]);
      } else if (byte < 0x80 || utf8) {
        put(c);
      } else {  // Whatever encoding it is in, one character of Latin-1 per byte is valid JSON.
        put(static_cast<char>(0xc0 | byte >> 6));
        put(static_cast<char>(0x80 | (byte & 0x3f)));
      }
    }
  }
  void number(long long value) {
    char digits[24];
    std::size_t at = sizeof(digits);
    do digits[--at] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    raw({digits + at, sizeof(digits) - at});
  }
  bool finish() {
    flush();
    return !failed_ && ::fsync(fd_.get()) == 0;
  }

 private:
  void put(char c) {
    if (used_ == sizeof(buffer_)) flush();
    buffer_[used_++] = c;
  }
  void flush() {
    for (std::size_t done = 0; done < used_ && !failed_;) {
      const ssize_t written = ::write(fd_.get(), buffer_ + done, used_ - done);
      if (written <= 0) failed_ = true;
      if (written > 0) done += static_cast<std::size_t>(written);
    }
    used_ = 0;
  }

  rendezvous::UniqueFd fd_;
  bool failed_;
  char buffer_[1024];
  std::size_t used_ = 0;
};

// When the error was met, not when its file was written: a stack may take long to walk.
timespec wall_time() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now;
}

enum class Fault { Unknown, OfTheUser };

bool write_error(std::string_view message, std::string_view stack, const timespec& when,
                 Fault fault = Fault::Unknown) {
  const ErrorPlace& place = error_places[error_place.load()];
  if (place.final_path[0] == '\0' || place.owner != ::getpid()) return true;
  {
    JsonFile file(place.temporary_path);
    file.raw(R"({"message": {"message": ")");
    file.string(message);
    file.raw(R"(", "extraInfo": {"py_callstack": ")");
    file.string(stack);
    file.raw(R"(", "timestamp": ")");
    file.number(when.tv_sec);
    // In torch's whole seconds a rank and those that fail of its end look alike, and the clock of
    // the file system ticks in milliseconds. torch passes over keys that it does not know.
    file.raw(R"(", "timestamp_ns": )");
    file.number(when.tv_sec * 1'000'000'000LL + when.tv_nsec);
    if (fault == Fault::OfTheUser) file.raw(R"(, "usage_error": true)");
    file.raw("}}}\n");
    if (!file.finish()) {
      ::unlink(place.temporary_path);
      return false;
    }
  }
  return ::rename(place.temporary_path, place.final_path) == 0;
}

// The calling thread's stack without its first `skipped` frames, which are ours. The first call of
// backtrace() loads a library and allocates, which is why install_error_handlers() makes one.
class Stack {
 public:
  [[gnu::noinline]] explicit Stack(int skipped) : count_(::backtrace(all_, frames_max)) {
    if (skipped < count_) first_ = skipped;  // Else it could not be walked: show what there is.
  }
  void print() const { ::backtrace_symbols_fd(all_ + first_, count_ - first_, STDERR_FILENO); }
  // For the thread that records alone. Valid until the next one.
  std::string_view text() const {
    if (scratch_fd < 0 || ::ftruncate(scratch_fd, 0) != 0) return {};
    ::lseek(scratch_fd, 0, SEEK_SET);
    ::backtrace_symbols_fd(all_ + first_, count_ - first_, scratch_fd);
    const ssize_t length = ::pread(scratch_fd, stack_text, sizeof(stack_text), 0);
    return {stack_text, static_cast<std::size_t>(length > 0 ? length : 0)};
  }

 private:
  void* all_[frames_max];
  int count_;
  int first_ = 0;
};

std::string_view name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV: invalid memory access";
    case SIGBUS:
      return "SIGBUS: memory that cannot be reached";
    case SIGFPE:
      return "SIGFPE: arithmetic error";
    case SIGILL:
      return "SIGILL: an instruction this processor does not know";
    case SIGABRT:
      return "SIGABRT: abort() was called";
    default:
      return "fatal signal";
  }
}

constexpr int signal_frames = 3;     // Stack, on_fatal_signal, the kernel's trampoline.
constexpr int terminate_frames = 2;  // Stack, on_terminate.
constexpr int record_frames = 2;     // Stack, record_error_with_stack.

[[gnu::noinline]] void on_fatal_signal(int signal) {
  if (takes(failing_thread)) {
    const timespec when = wall_time();
    const std::string_view name = name_of_signal(signal);
    [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, name.data(), name.size());
    ignored = ::write(STDERR_FILENO, "\n", 1);
    const bool first = is_to_record();
    if (first) write_error(name, "", when);  // In case that walking the stack faults again.
    const Stack stack(signal_frames);
    stack.print();
    if (first) write_error(name, stack.text(), when);
    recorded = true;
  } else if (failing_thread != own_thread()) {
    wait_for_other_thread(nullptr);
  }  // Else a fault while it tells of one, or the abort() of on_terminate(), which has told all.
  ::signal(signal, SIG_DFL);
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), signal);
}

std::string describe_current_exception() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "std::terminate was called without an exception";
  int status = 0;
  char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string text = status == 0 ? readable : type->name();
  std::free(readable);
  try {
    throw;
  } catch (const std::exception& error) {
    text += ": ";
    text += error.what();
  } catch (...) {
    text += " (not a std::exception)";
  }
  return text;
}

[[noreturn, gnu::noinline]] void on_terminate() {
  const timespec when = wall_time();
  const std::string message = describe_current_exception();
  std::fprintf(stderr, "uncaught exception: %s\n", message.c_str());
  if (!takes(failing_thread) && failing_thread != own_thread()) wait_for_other_thread(nullptr);
  const Stack stack(terminate_frames);
  stack.print();
  if (is_to_record()) write_error(message, stack.text(), when);
  recorded = true;
  std::abort();
}

bool record(const std::string& message, const timespec& when, Fault fault,
            const Stack* stack = nullptr) noexcept {
  // Nobody has said yet where it goes. What follows is then the first that can be recorded.
  if (error_places[error_place.load()].owner == 0) return false;
  if (!is_to_record()) return !lost;
  bool well = false;
  try {
    well = write_error(message, stack == nullptr ? "" : stack->text(), when, fault);
  } catch (...) {  // Nothing is written then.
  }
  lost = !well;
  recorded = true;
  return well;
}

void change_error_file(const std::string& file) {
  const int next = 1 - error_place.load();
  ErrorPlace& place = error_places[next];
  place = {};
  place.owner = ::getpid();
  const std::string temporary = file + "." + std::to_string(::getpid()) + ".tmp";
  if (!file.empty() && temporary.size() < path_bytes_max) {
    std::memcpy(place.final_path, file.c_str(), file.size() + 1);
    std::memcpy(place.temporary_path, temporary.c_str(), temporary.size() + 1);
  }
  error_place.store(next);
}

}  // namespace

bool record_error(const std::string& message) noexcept {
  return record(message, wall_time(), Fault::Unknown);
}

[[gnu::noinline]] bool record_error_with_stack(const std::string& message) noexcept {
  const timespec when = wall_time();
  const Stack stack(record_frames);
  return record(message, when, Fault::Unknown, &stack);
}

bool record_usage_error(const std::string& message) noexcept {
  return record(message, wall_time(), Fault::OfTheUser);
}

void follow_error_file() {
  if (scratch_fd < 0) return;
  change_error_file(environment_variable("TORCHELASTIC_ERROR_FILE").value_or(""));
  // What this process has told and lived through, as a call that was refused, is no attempt's cause
  // but the last one's. One that is still being written ends in that attempt's file.
  if (recorded) {
    recorded = false;
    lost = false;
    recording_thread = 0;
  }
}

void install_error_handlers(const WorkerEnv& env) {
  change_error_file(env.error_file);
  scratch_fd = ::memfd_create("ddprun-stack", MFD_CLOEXEC);
  void* frame = nullptr;
  ::backtrace(&frame, 1);

  std::set_terminate(on_terminate);
  const stack_t stack{handler_stack, 0, sizeof(handler_stack)};
  ::sigaltstack(&stack, nullptr);  // An overflown stack of the main thread can still be told.
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  action.sa_flags = SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  for (const int signal : fatal_signals) ::sigaction(signal, &action, nullptr);
  answer_for_stacks();
  hold_life_lock();
}

}  // namespace ddprun::worker
