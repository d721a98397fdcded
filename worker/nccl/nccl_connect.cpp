// One exchange does it: a rank's address and, beside rank 0's, the id.
#include "worker/nccl/nccl_connect.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "worker/meeting.h"
#include "worker/nccl/nccl_types.h"
#include "worker/own_attempt.h"
#include "worker/peers/mesh.h"

namespace ddprun::worker {
namespace {

constexpr int nccl_version_min = 22700;  // As in cmake/dependencies.cmake.

// How many there are; `device` is one of them.
int require_device(int device) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    throw CommunicatorError(std::string("no CUDA device can be used on this host: ") +
                            cudaGetErrorString(status == cudaSuccess ? cudaErrorNoDevice : status) +
                            " (is a driver installed, is the device visible in this container?)");
  }
  if (device < 0 || device >= devices) {
    throw CommunicatorError("there is no CUDA device " + std::to_string(device) +
                            ": this host has " + std::to_string(devices));
  }
  return devices;
}

// What the loader finds need not be what this was built with.
void require_nccl() {
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess && version >= nccl_version_min) return;
  const auto text = [](int code) {
    return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
           std::to_string(code % 100);
  };
  Dl_info found{};
  const bool known = ::dladdr(reinterpret_cast<void*>(&ncclGetVersion), &found) != 0;
  throw CommunicatorError("NCCL " + text(version) + " is too old, " + text(nccl_version_min) +
                          " or newer is needed: the loader found it at " +
                          (known ? found.dli_fname : "an unknown place") +
                          " (LD_LIBRARY_PATH says where it looks first)");
}

// All of it but the others.
NcclPeers begin_nccl_peers(int rank, int world_size, const CommunicatorOptions& options) {
  require_nccl();
  NcclPeers peers;
  peers.device = options.cuda_device.value_or(0);
  require_device(peers.device);
  peers.rank = rank;
  peers.world_size = world_size;
  peers.deadline = std::chrono::steady_clock::now() + options.connect_timeout;
  if (rank == 0 && ncclGetUniqueId(&peers.id) != ncclSuccess) {
    throw CommunicatorError(std::string("ncclGetUniqueId: ") + ncclGetLastError(nullptr));
  }
  peers.watched.resize(1);
  return peers;
}

}  // namespace

NcclPeers connect_nccl_peers(int rank, int world_size, Epoch epoch, AddressExchange& exchange,
                             const CommunicatorOptions& options) {
  NcclPeers peers = begin_nccl_peers(rank, world_size, options);
  if (world_size == 1) return peers;
  PeerAddress mine;
  mine.ip = exchange.local_address();
  // Listens before the address is published: whoever reads it may call at once.
  Mesh mesh(rank, epoch, mine.ip, job_key(), /*encrypts=*/false, Mesh::For::Watch);
  mine.port = mesh.port();
  mine.secret = mesh.secret();
  mine.segment.pid = ::getpid();
  mine.world_size = world_size;
  mine.group = options.group;
  const auto texts = exchange.all_gather(
      to_text(mine) + " " + (rank == 0 ? to_text(peers.id) : "-"), peers.deadline);
  const std::vector<PeerAddress> addresses = parse_peer_addresses(texts, rank);
  peers.id = parse_nccl_id(texts[0].substr(texts[0].rfind(' ') + 1));
  std::vector<PeerSockets> sockets =
      mesh.connect(addresses, peers.deadline, options.interrupt_fd, exchange.wait_words());
  peers.watched = to_watch(sockets, addresses);
  return peers;
}

NcclPeers meet_nccl_peers(const WorkerEnv& env, CommunicatorOptions options) {
  // Before the others are met: a rank without a device must not keep them waiting for NCCL.
  require_nccl();
  const int devices = require_device(options.cuda_device.value_or(0));
  check_group(env, options);
  const WorkerEnv met = meet_workers(env, options);
  if (!options.cuda_device) options.cuda_device = met.local_rank % devices;
  if (env.world_size == 1) return begin_nccl_peers(env.rank, env.world_size, options);
  const auto exchange = make_store_exchange(met, options);
  return connect_nccl_peers(env.rank, env.world_size, epoch_of(env), *exchange, options);
}

}  // namespace ddprun::worker
