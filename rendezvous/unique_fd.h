// A file descriptor that is closed with its owner: the one for the whole tree, sockets and files
// alike.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace ddprun::rendezvous {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int release() { return std::exchange(fd_, -1); }
  // Errors of close() are lost: a file whose bytes must have arrived is synced before.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// A second descriptor for what `fd` is, closed on exec, with the lowest free number from `at_least`
// on. Throws std::system_error: a -1 that is passed on means something else to each who gets it.
inline UniqueFd duplicate(int fd, int at_least = 0) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, at_least));
  if (!copy) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot duplicate descriptor " + std::to_string(fd));
  }
  return copy;
}

// To an object of asio's, which owns what it was assigned. Where it takes nothing, it throws, and
// the descriptor is closed.
template <typename Owner>
void hand_over(UniqueFd fd, Owner& owner) {
  owner.assign(fd.get());
  fd.release();
}

}  // namespace ddprun::rendezvous
