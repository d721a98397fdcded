// What every communicator shares: messages for those that have none under way, what those whose
// memory is the host's need not do otherwise, sizes of types.
#include "worker/communicator.h"

#include <algorithm>

namespace ddprun::worker {
namespace {

constexpr std::chrono::milliseconds wait_max = std::chrono::hours{24 * 3652};

class DoneRequest final : public Request {
 public:
  bool test() override { return true; }
  void wait() override {}
};

}  // namespace

CommunicatorOptions bounded(CommunicatorOptions options) {
  for (auto* const wait : {&options.connect_timeout, &options.collective_timeout,
                           &options.slow_wait, &options.slow_meeting}) {
    *wait = std::min(*wait, wait_max);
  }
  return options;
}

std::unique_ptr<Request> Communicator::isend(const void* data, std::size_t count, DataType type,
                                             int peer, Stream stream) {
  send(data, count, type, peer, stream);
  return std::make_unique<DoneRequest>();
}

std::unique_ptr<Request> Communicator::irecv(void* data, std::size_t count, DataType type, int peer,
                                             Stream stream) {
  recv(data, count, type, peer, stream);
  return std::make_unique<DoneRequest>();
}

void Communicator::all_gather_on_host(const void* send, void* recv, std::size_t bytes,
                                      Stream stream) {
  all_gather(send, recv, bytes, DataType::UInt8, stream);
}

// In the shape in which calls say it (call_guard.h): by that the launcher knows who only lost a
// peer.
void Communicator::throw_if_aborted() const {
  if (const auto why = aborted()) {
    throw CommunicatorError("a step failed on rank " + std::to_string(rank()) + ": " + *why);
  }
}

std::size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::Float32:
    case DataType::Int32:
      return 4;
    case DataType::Float64:
    case DataType::Int64:
      return 8;
    case DataType::Float16:
    case DataType::BFloat16:
      return 2;
    case DataType::UInt8:
      return 1;
  }
  throw CommunicatorError("bytes_of: unknown data type " + std::to_string(static_cast<int>(type)));
}

}  // namespace ddprun::worker
