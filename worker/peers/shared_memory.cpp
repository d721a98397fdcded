// memfd segments and futexes.
#include "worker/peers/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "rendezvous/random_id.h"
#include "worker/host_memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14. Older C libraries do not name it.
#endif

namespace ddprun::worker {
namespace {

// The first page holds the token, so that `data()` starts on a page of its own.
constexpr std::size_t head_bytes = 4096;
constexpr std::size_t token_digits = 32;

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::string memfd_name(const std::string& token) { return "ddprun-" + token; }

// Memory that is only promised ends in SIGBUS where there is none left. False: see errno.
//
// Most kernels end a fallocate() of shared memory when a signal comes (Linux 6.18 does not), and
// take back all that this call has reserved. Under a profiler's timer a large one would never end,
// so it goes on by halves.
//
// No limit of the kernel's holds for it either, before other programs are shot for the memory. So
// it is asked for before each piece: peers that reserve at the same time take from the same.
bool reserve(int fd, std::size_t bytes) {
  constexpr std::size_t piece_bytes_max = 256 << 20;
  constexpr std::size_t piece_bytes_min = 64 << 10;  // Microseconds.
  constexpr int interruptions_max = 1000;            // Of such a piece.
  std::size_t piece = std::min(bytes, piece_bytes_max);
  int interruptions = 0;
  for (std::size_t first = 0; first < bytes;) {
    const std::string lack = lack_of_memory(bytes - first, memory_left());
    if (!lack.empty()) throw std::system_error(ENOMEM, std::generic_category(), lack);
    const std::size_t next = std::min(piece, bytes - first);
    if (::fallocate(fd, 0, static_cast<off_t>(first), static_cast<off_t>(next)) == 0) {
      first += next;
      interruptions = 0;
      continue;
    }
    if (errno != EINTR) return false;
    if (piece <= piece_bytes_min && ++interruptions > interruptions_max) return false;
    piece = std::max(piece / 2, piece_bytes_min);
  }
  return true;
}

}  // namespace

SharedSegment::SharedSegment(int fd, std::size_t bytes, std::string token)
    : fd_(fd), bytes_(bytes), token_(std::move(token)) {}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(mapping_, other.mapping_);
  std::swap(bytes_, other.bytes_);
  std::swap(token_, other.token_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (mapping_ != nullptr) ::munmap(mapping_, head_bytes + bytes_);
}

void* SharedSegment::data() const { return static_cast<char*>(mapping_) + head_bytes; }

SegmentAddress SharedSegment::address() const { return {::getpid(), fd_.get(), bytes_, token_}; }

void SharedSegment::map() {
  // Without MAP_POPULATE: to map and zero a page costs no more when it is first touched, and a
  // model that is smaller than the buffers never touches most of them. Meeting again after a loss
  // would wait for all of them.
  void* mapping =
      ::mmap(nullptr, head_bytes + bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapping == MAP_FAILED) throw_errno("mmap of " + std::to_string(bytes_) + " shared bytes");
  mapping_ = mapping;
}

// Never destroyed: a thread may still prepare one when the process exits.
struct SharedSegment::Prepared {
  std::mutex mutex;
  std::optional<SharedSegment> segment;
  int owner = 0;  // A child that was forked must not hand out its parent's.

  static Prepared& one() {
    static auto* const one = new Prepared;
    return *one;
  }
  bool has(std::size_t bytes) const {
    return segment && owner == ::getpid() && segment->size() == bytes;
  }
};

void SharedSegment::prepare(std::size_t bytes) {
  Prepared& prepared = Prepared::one();
  const std::lock_guard lock(prepared.mutex);
  if (prepared.has(bytes)) return;
  try {
    SharedSegment segment = make(bytes);
    ::madvise(segment.mapping_, head_bytes + bytes, MADV_POPULATE_WRITE);  // Or not.
    prepared.segment.emplace(std::move(segment));
    prepared.owner = ::getpid();
  } catch (const std::exception&) {
    prepared.segment.reset();
  }
}

SharedSegment SharedSegment::create(std::size_t bytes) {
  Prepared& prepared = Prepared::one();
  {
    const std::lock_guard lock(prepared.mutex);
    if (prepared.has(bytes)) return *std::exchange(prepared.segment, std::nullopt);
  }
  return make(bytes);
}

SharedSegment SharedSegment::make(std::size_t bytes) {
  const std::string token = rendezvous::random_id();
  const int fd = ::memfd_create(memfd_name(token).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw_errno("memfd_create");
  SharedSegment segment(fd, bytes, token);
  if (::ftruncate(fd, static_cast<off_t>(head_bytes + bytes)) != 0 ||
      !reserve(fd, head_bytes + bytes)) {
    throw_errno("reserving " + std::to_string(bytes) + " bytes of shared memory");
  }
  // Nobody can make the file shorter under a peer's mapping.
  ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  segment.map();
  std::memcpy(segment.mapping_, token.data(), std::min(token.size(), head_bytes));
  return segment;
}

SharedSegment SharedSegment::open(const SegmentAddress& address) {
  if (address.token.size() != token_digits) throw std::runtime_error("no shared memory offered");
  const std::string path =
      "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  // The link is looked at before it is opened: in another process-id namespace it may be anything.
  char link[PATH_MAX];
  const ssize_t length = ::readlink(path.c_str(), link, sizeof(link));
  if (length < 0 && errno != ENOENT) throw std::runtime_error(path + ": " + std::strerror(errno));
  const std::string_view what(link, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  if (what.find(memfd_name(address.token)) == std::string_view::npos) {
    throw std::runtime_error(path +
                             " is not its memory: another container numbers its processes"
                             " by itself");
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw std::runtime_error(path + ": " + std::strerror(errno));
  SharedSegment segment(fd, address.bytes, address.token);
  struct stat status {};
  if (::fstat(fd, &status) != 0 ||
      static_cast<std::size_t>(status.st_size) != head_bytes + address.bytes) {
    throw std::runtime_error(path + " has another size than announced");
  }
  segment.map();
  if (std::memcmp(segment.mapping_, address.token.data(), token_digits) != 0) {
    throw std::runtime_error(path + " does not carry the announced token");
  }
  segment.fd_.reset();
  return segment;
}

void wait_on_word(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                  std::chrono::steady_clock::time_point deadline) {
  static_assert(sizeof(word) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto left_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  if (left_ns <= 0) return;
  timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void wake_word(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ddprun::worker
