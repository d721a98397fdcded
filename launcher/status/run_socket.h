// A listening Unix socket in a folder of run_folder.h, by which a launcher is found. Needs no loop,
// and may be made beside one: its folder may lie on a file server that does not answer.
//
// Others remove names without a word: logind takes /run/user/UID away at the last logout of a user
// whose job goes on. So who serves it asks is_gone() now and then. inotify would tell of it, but
// its end waits for the kernel's grace period: 5 to 13 ms at the end of every job.
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

  // Somebody else has removed or moved it, or a folder that it lies in. Asks no file server.
  bool is_gone() const;

 private:
  std::string listen_in(const std::string& wanted, int backlog);

  std::string place_;
  std::string name_;
  rendezvous::UniqueFd folder_;
  rendezvous::UniqueFd listener_;
  rendezvous::UniqueFd name_at_;  // The file that the name is of; invalid: could not be opened.
  std::string bound_at_;          // Where the kernel saw it at first.
};

}  // namespace ddprun::launcher
