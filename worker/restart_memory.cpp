// A half is there when its number is not 0, and the number is stored last: what a process has
// stored before it was killed stays, in the order in which it was stored.
#include "worker/restart_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "rendezvous/contract/restart_memory_place.h"
#include "worker/rank_environment.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t half_head_bytes = 64;  // What follows keeps the alignment that tensors like.
constexpr std::size_t memory_page = 4096;
constexpr int memory_halves = 2;

// -1: the launcher gave none.
int given_descriptor() { return descriptor_of(rendezvous::restart_memory_variable); }

}  // namespace

struct RestartMemory::Half {
  std::uint64_t number;  // Of the writes to both, from 1; 0: nothing.
  std::uint64_t bytes;
};

std::optional<RestartMemory> RestartMemory::of_launcher() { return map(given_descriptor()); }

// A lock of the process, not of the descriptor, which all workers have of their launcher.
bool RestartMemory::become_writer() {
  const int fd = given_descriptor();
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fd < 0) return false;
  return ::fcntl(fd, F_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

std::optional<RestartMemory> RestartMemory::map(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || facts.st_size < static_cast<off_t>(memory_halves * memory_page)) {
    return std::nullopt;
  }
  const auto bytes = static_cast<std::size_t>(facts.st_size) / (memory_halves * memory_page) *
                     (memory_halves * memory_page);
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (pages == MAP_FAILED) return std::nullopt;
  return RestartMemory(pages, bytes);
}

RestartMemory::RestartMemory(RestartMemory&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)),
      bytes_(other.bytes_),
      writing_(other.writing_),
      added_(other.added_) {}

RestartMemory& RestartMemory::operator=(RestartMemory&& other) noexcept {
  std::swap(pages_, other.pages_);
  std::swap(bytes_, other.bytes_);
  std::swap(writing_, other.writing_);
  std::swap(added_, other.added_);
  return *this;
}

RestartMemory::~RestartMemory() {
  if (pages_ != nullptr) ::munmap(pages_, bytes_);
}

RestartMemory::Half& RestartMemory::half(int number) const {
  return *reinterpret_cast<Half*>(static_cast<char*>(pages_) +
                                  bytes_ / memory_halves * static_cast<std::size_t>(number));
}

char* RestartMemory::data_of(int number) const {
  return reinterpret_cast<char*>(&half(number)) + half_head_bytes;
}

std::size_t RestartMemory::bytes_max() const { return bytes_ / memory_halves - half_head_bytes; }

std::vector<std::string_view> RestartMemory::contents() const {
  std::vector<std::pair<std::uint64_t, std::string_view>> found;
  for (int i = 0; i < memory_halves; ++i) {
    const std::uint64_t number = std::atomic_ref(half(i).number).load(std::memory_order_acquire);
    if (number == 0) continue;
    // Bounded by the mapping: whoever wrote it may have been another program with descriptor and
    // all.
    found.emplace_back(
        number, std::string_view(data_of(i), std::min<std::size_t>(half(i).bytes, bytes_max())));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& one, const auto& other) { return one.first > other.first; });
  std::vector<std::string_view> result;
  for (const auto& [number, content] : found) result.push_back(content);
  return result;
}

void RestartMemory::begin() {
  writing_ = half(0).number <= half(1).number ? 0 : 1;
  std::atomic_ref(half(writing_).number).store(0, std::memory_order_seq_cst);
  // The store alone would let the compiler move what add() writes before it, and a process that is
  // killed in between would leave a torn half that looks whole.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  added_ = 0;
}

bool RestartMemory::add(const void* data, std::size_t bytes) {
  if (bytes > bytes_max() - added_) return false;
  std::memcpy(data_of(writing_) + added_, data, bytes);
  added_ += bytes;
  return true;
}

bool RestartMemory::overwrite(const void* data, std::size_t bytes, std::size_t at) {
  if (at > added_ || bytes > added_ - at) return false;
  std::memcpy(data_of(writing_) + at, data, bytes);
  return true;
}

void RestartMemory::commit() {
  half(writing_).bytes = added_;
  std::uint64_t before = half(1 - writing_).number;
  // The last number there is, which none of our writers comes to. What is written is no content
  // yet: the one before may be counted anew.
  if (before == std::numeric_limits<std::uint64_t>::max()) {
    before = 1;
    std::atomic_ref(half(1 - writing_).number).store(before, std::memory_order_seq_cst);
  }
  std::atomic_ref(half(writing_).number).store(before + 1, std::memory_order_release);
}

void RestartMemory::clear() {
  for (int i = 0; i < memory_halves; ++i) {
    std::atomic_ref(half(i).number).store(0, std::memory_order_seq_cst);
  }
}

}  // namespace ddprun::worker
