// Messages between two ranks. They travel over TCP also within a host: shared memory serves the
// collectives, which move far more.
#pragma once

#include <cstddef>
#include <memory>

#include "worker/cpu/cpu_peers.h"

namespace ddprun::worker {

class CpuMessages {
 public:
  explicit CpuMessages(CpuPeers& peers) : peers_(peers) {}

  // As Communicator has them.
  void send(const void* data, std::size_t count, DataType type, int peer);
  void recv(void* data, std::size_t count, DataType type, int peer);
  std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type, int peer);
  std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer);

 private:
  CpuPeers::Message post_send(const void* data, std::size_t count, DataType type, int peer);
  CpuPeers::Message post_recv(void* data, std::size_t count, DataType type, int peer);

  CpuPeers& peers_;
};

}  // namespace ddprun::worker
