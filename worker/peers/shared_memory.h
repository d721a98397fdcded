// Memory that processes of one host share without a name in any file system, and waiting on it.
//
//   owner:  memfd_create("ddprun-<token>")  -- publishes pid, descriptor and token
//   peer:   opens /proc/<pid>/fd/<n> if that link names the token, and checks the token inside
//
// The memory vanishes with the last process that maps it, however that process ends: nothing is
// left in /dev/shm. The token keeps apart hosts and containers whose process ids only look alike.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/unique_fd.h"

namespace ddprun::worker {

// Where a peer finds a segment. Travels as text: "pid fd bytes token".
struct SegmentAddress {
  int pid = 0;
  int fd = -1;
  std::size_t bytes = 0;
  std::string token;  // 32 hexadecimal digits.
};

// One mapping of a segment, the owner's or a peer's. Movable; unmaps and closes when destroyed.
class SharedSegment {
 public:
  // A new zeroed segment of at least `bytes`, whose memory is reserved at once, so that a full
  // machine is an error here and not a SIGBUS later. Throws std::system_error: of ENOMEM where the
  // host, or its control group, has not that much left.
  static SharedSegment create(std::size_t bytes);

  // Makes what the next create() of as many bytes in this process returns, and touches its pages,
  // which takes longer than all else of create(). Does nothing if that is there, or cannot be made:
  // create() says then what is the matter. Any thread.
  static void prepare(std::size_t bytes);

  // Another process's (or thread's) segment. Throws std::runtime_error that says why it cannot be
  // shared.
  static SharedSegment open(const SegmentAddress& address);

  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  explicit operator bool() const { return mapping_ != nullptr; }
  void* data() const;  // Page-aligned.
  std::size_t size() const { return bytes_; }
  SegmentAddress address() const;  // Owner only.

 private:
  SharedSegment(int fd, std::size_t bytes, std::string token);
  struct Prepared;
  static SharedSegment make(std::size_t bytes);
  void map();

  rendezvous::UniqueFd fd_;  // Kept by the owner, for peers to open.
  void* mapping_ = nullptr;
  std::size_t bytes_ = 0;  // Without the page that holds the token.
  std::string token_;
};

// Sleeps while `word` is `expected`, at most until `deadline`; may return early. The word may lie
// in shared memory.
void wait_on_word(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                  std::chrono::steady_clock::time_point deadline);
void wake_word(const std::atomic<std::uint32_t>& word);  // Wakes all, in every process.

}  // namespace ddprun::worker
