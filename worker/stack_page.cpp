// The handler calls only what error_file.cpp's does, and what that has been called for once before:
// the first backtrace() loads a library.
#include "worker/stack_page.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "rendezvous/contract/stack_page.h"
#include "worker/progress_page.h"

namespace ddprun::worker {
namespace {

constexpr int stack_frames_max = 64;
constexpr int stack_frames_of_handler = 2;  // It, and the kernel's trampoline.

// Written by answer_for_stacks() alone. The handler, which may come at any moment, reads it once.
std::atomic<rendezvous::StackPageLayout*> stack_page = nullptr;
int stack_scratch_fd = -1;  // A memory file through which the symbols pass.

[[gnu::noinline]] void on_stack_wanted(int /*signal*/) {
  const int before = errno;
  void* frames[stack_frames_max];
  const int count = ::backtrace(frames, stack_frames_max);
  rendezvous::StackPageLayout* const page = stack_page;
  if (count > stack_frames_of_handler && ::ftruncate(stack_scratch_fd, 0) == 0 &&
      ::lseek(stack_scratch_fd, 0, SEEK_SET) == 0) {
    ::backtrace_symbols_fd(frames + stack_frames_of_handler, count - stack_frames_of_handler,
                           stack_scratch_fd);
    const ssize_t bytes = ::pread(stack_scratch_fd, page->text, sizeof page->text, 0);
    page->bytes = bytes > 0 ? static_cast<std::uint32_t>(bytes) : 0;
    const std::atomic_ref answers(page->answers);
    answers.store(answers.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  errno = before;
}

// False: the process has another use for the signal, or the kernel gives no memory.
bool begin_answering(int wanted) {
  struct sigaction usual {};
  if (::sigaction(wanted, nullptr, &usual) != 0 || usual.sa_handler != SIG_DFL) return false;
  stack_scratch_fd = ::memfd_create("ddprun-stack", MFD_CLOEXEC);
  if (stack_scratch_fd < 0) return false;
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  return true;
}

}  // namespace

void answer_for_stacks() {
  if (!ProgressPage::own().is_there()) return;
  auto* const place = reinterpret_cast<rendezvous::StackPageLayout*>(
      static_cast<char*>(memory_of_launcher()) + rendezvous::stack_page_offset);
  if (stack_page == place) return;
  const int wanted = SIGRTMAX - 3;
  const bool first = stack_page == nullptr;
  if (first && !begin_answering(wanted)) return;
  stack_page = place;
  struct sigaction action {};
  action.sa_handler = on_stack_wanted;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (first && ::sigaction(wanted, &action, nullptr) != 0) return;
  place->signal = wanted;
  place->pid = ::getpid();
}

}  // namespace ddprun::worker
