// Messages between two ranks. They travel over TCP also within a host: shared memory serves the
// collectives, which move far more.
#include "worker/cpu/cpu_communicator.h"

namespace ddprun::worker {

class CpuCommunicator::MessageRequest final : public Request {
 public:
  MessageRequest(CpuCommunicator& communicator, const Message& message)
      : communicator_(communicator), message_(message) {}
  bool test() override { return communicator_.test_message(message_); }
  void wait() override { communicator_.wait_message(message_); }

 private:
  CpuCommunicator& communicator_;
  Message message_;
};

Call CpuCommunicator::start_message(const char* name, const void* data, std::size_t count,
                                    DataType type, int peer,
                                    std::vector<std::uint32_t>& sequences) {
  if (peer < 0 || peer >= world_size_ || peer == rank_) {
    throw CommunicatorError(std::string(name) + ": there is no other rank " + std::to_string(peer) +
                            " among " + std::to_string(world_size_));
  }
  Call call;
  call.kind = CallKind::Message;
  call.count = count;
  call.type = type;
  call.sequence = ++sequences[static_cast<std::size_t>(peer)];
  if (watch_.aborted()) throw_aborted(call);
  require(count <= SIZE_MAX / 16, call, "this many elements do not fit any memory");
  require(data != nullptr || count == 0, call, "the data is a null pointer");
  return call;
}

CpuCommunicator::Message CpuCommunicator::post_send(const void* data, std::size_t count,
                                                    DataType type, int peer) {
  const Call call = start_message("send", data, count, type, peer, sent_);
  return {call, peer, true, streams_->post_send(peer, call, 0, data, count * bytes_of(type))};
}

CpuCommunicator::Message CpuCommunicator::post_recv(void* data, std::size_t count, DataType type,
                                                    int peer) {
  const Call call = start_message("recv", data, count, type, peer, received_);
  return {call, peer, false, streams_->post_receive(peer, call, 0, data, count * bytes_of(type))};
}

void CpuCommunicator::send(const void* data, std::size_t count, DataType type, int peer, Stream) {
  wait_message(post_send(data, count, type, peer));
}

void CpuCommunicator::recv(void* data, std::size_t count, DataType type, int peer, Stream) {
  wait_message(post_recv(data, count, type, peer));
}

std::unique_ptr<Request> CpuCommunicator::isend(const void* data, std::size_t count, DataType type,
                                                int peer, Stream) {
  auto request = std::make_unique<MessageRequest>(*this, post_send(data, count, type, peer));
  request->test();  // A small message is on its way at once.
  return request;
}

std::unique_ptr<Request> CpuCommunicator::irecv(void* data, std::size_t count, DataType type,
                                                int peer, Stream) {
  return std::make_unique<MessageRequest>(*this, post_recv(data, count, type, peer));
}

}  // namespace ddprun::worker
