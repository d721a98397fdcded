// The socket has its name only while somebody can be asked behind it: it is renamed into place when
// it listens, and unlinked before the descriptor goes.
#include "launcher/status/run_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "launcher/status/job_connection.h"
#include "launcher/status/run_folder.h"

namespace ddprun::launcher {
namespace {

using rendezvous::UniqueFd;

constexpr int folder_tries = 5;

// A launcher that was killed leaves its socket behind; nobody answers there any more. Those whose
// process lives are not disturbed: many may be started at once.
void remove_dead_sockets(int folder) {
  for (const std::string& name : socket_names(folder)) {
    const int pid = std::atoi(name.c_str());
    if (::kill(pid, 0) != 0 && errno == ESRCH) connect_to_job(folder, name);
  }
}

// Nothing: errno says why.
UniqueFd listener_at(int folder, const std::string& name, int backlog) {
  const auto address = socket_address(folder, name).value();  // Our names are short.
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  if (!listener || ::bind(listener.get(), at, sizeof address) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return {};
  }
  return listener;
}

// As the kernel knows it now: another one once the file or a folder above it was renamed, and with
// " (deleted)" once it was removed. Empty without /proc.
std::string path_of(int file) {
  std::error_code unknown;
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file), unknown);
}

}  // namespace

RunSocket::RunSocket(const std::vector<std::string>& folders, int backlog) {
  std::string why;
  for (const std::string& place : folders) {
    const std::string refusal = listen_in(place, backlog);
    if (refusal.empty()) {
      name_at_.reset(::openat(folder_.get(), name_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (name_at_) bound_at_ = path_of(name_at_.get());
      remove_dead_sockets(folder_.get());
      return;
    }
    why += (why.empty() ? "" : "; ") + refusal;
  }
  throw std::runtime_error(why);
}

// The folder may go between its opening and the socket in it: the last launcher that leaves removes
// it.
std::string RunSocket::listen_in(const std::string& wanted, int backlog) {
  std::string why;
  for (int i = 0; i < folder_tries; ++i) {
    folder_ = open_run_folder(wanted, /*make=*/true, why);
    if (!folder_) return why;
    name_ = new_socket_name();
    // It gets its name when it can answer: until then connections are refused, as a dead one's are.
    const std::string unready = "." + name_;
    listener_ = listener_at(folder_.get(), unready, backlog);
    if (listener_ &&
        ::renameat(folder_.get(), unready.c_str(), folder_.get(), name_.c_str()) == 0) {
      place_ = wanted;
      return "";
    }
    why = fmt::format("cannot listen in {}: {}", wanted, std::generic_category().message(errno));
    ::unlinkat(folder_.get(), unready.c_str(), 0);
  }
  return why;
}

RunSocket::~RunSocket() {
  if (place_.empty()) return;
  ::unlinkat(folder_.get(), name_.c_str(), 0);
  ::rmdir(place_.c_str());  // Fails, as it should, while others are in it.
}

bool RunSocket::is_gone() const { return name_at_ && path_of(name_at_.get()) != bound_at_; }

}  // namespace ddprun::launcher
