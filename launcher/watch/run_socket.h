// A listening Unix socket in a folder of run_folder.h, by which a launcher is found. Needs no loop,
// and may be made beside one: its folder may lie on a file server that does not answer.
//
// Others remove names without a word: logind takes /run/user/UID away at the last logout of a user
// whose job goes on. The kernel tells of that (inotify), so that nobody has to look again and
// again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

class RunSocket {
 public:
  // In the first of these folders that will have it; the sockets of launchers that were killed are
  // removed from there. Throws std::runtime_error, which says why none would.
  RunSocket(const std::vector<std::string>& folders, int backlog);
  // Removes the socket, and the folder when no other launcher uses it.
  ~RunSocket();
  RunSocket(const RunSocket&) = delete;
  RunSocket& operator=(const RunSocket&) = delete;

  std::string path() const { return place_ + "/" + name_; }
  // The descriptor that listens, for who serves it. Once.
  rendezvous::UniqueFd take_listener() { return std::move(listener_); }

  // A descriptor that can be read when a name in the folder was removed: then is_gone() is worth
  // asking. Once. Invalid: the kernel watches no more files for this user.
  rendezvous::UniqueFd take_watch() { return std::move(watch_); }
  // Whether this socket's name was among those that were removed since the last question.
  bool is_gone(int watch) const;

 private:
  std::string listen_in(const std::string& wanted, int backlog);
  void watch_names();

  std::string place_;
  std::string name_;
  rendezvous::UniqueFd folder_;
  rendezvous::UniqueFd listener_;
  rendezvous::UniqueFd watch_;  // inotify's.
};

}  // namespace ddprun::launcher
