// Processes that were started by hand meet through a file on a file system that all of them see
// (file:///path): rank 0 hosts a store and writes into the file where it is.
//
//   ddprun-rendezvous 1
//   token 6f1c...          random, also a key of the store
//   world 8
//   store 10.0.0.7 40112   an address of rank 0's host and the port, one line for each
//
// A file that an earlier job left behind does no harm: its store does not answer, or does not know
// the token, or has met this rank before. The ranks then wait until rank 0 has written a new one.
// An empty file is as good as none (mktemp makes one). Anything else is somebody's, and so is what
// another user has made in a folder where anybody may: it is refused on every rank, and neither
// replaced nor removed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/host/interface_addresses.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/long_wait.h"

struct ifaddrs;

namespace ddprun::rendezvous {

// What was tried on which file, and what came of it.
class FileRendezvousError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Nobody was met in time; more time could help.
class FileRendezvousTimeout : public FileRendezvousError {
 public:
  using FileRendezvousError::FileRendezvousError;
};

// What the file says.
struct FileNote {
  std::string token;
  int world_size = 0;
  std::vector<std::pair<std::string, std::uint16_t>> stores;

  std::string to_text() const;
  // Nothing for text that is not a whole note.
  static std::optional<FileNote> parse(const std::string& text);
};

// By which rank 0's host, which has these interfaces, can be reached: those of IPv4, for a host
// that has both, then those of IPv6, and at last 127.0.0.1, which leads to it from itself alone.
std::vector<std::string> addresses_of(const std::vector<InterfaceAddress>& interfaces);

class FileRendezvous {
 public:
  // Returns once this rank has met the store of its own job: rank 0 hosts it. `address`: the one
  // that rank 0 announces; "" = all of its host's. Throws FileRendezvousTimeout after `timeout`,
  // and FileRendezvousError when the file cannot be written, when a living job uses the same file,
  // or when the store is lost; at once when the path is taken by something that is no rendezvous
  // file. `words`: what ranks say that wait for rank 0's store.
  FileRendezvous(const std::string& path, int rank, int world_size,
                 std::chrono::milliseconds timeout, const std::string& address = "",
                 WaitWords words = {});
  // Rank 0 removes the file, if it is still its own, and ends the store.
  ~FileRendezvous();
  FileRendezvous(const FileRendezvous&) = delete;

  // Where this rank reaches the store.
  const std::string& host() const { return host_; }
  std::uint16_t port() const { return port_; }

 private:
  void host_it(const std::string& address, std::chrono::milliseconds timeout);
  void find_it(std::chrono::milliseconds timeout, WaitWords words);

  std::string path_;
  int rank_;
  int world_size_;
  FileNote note_;  // Rank 0's own.
  std::string host_;
  std::uint16_t port_ = 0;
  std::unique_ptr<HostedStore> store_;  // Rank 0.
};

}  // namespace ddprun::rendezvous
