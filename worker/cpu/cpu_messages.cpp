// A message is posted to the streams at once, and moves while this rank is inside any call.
#include "worker/cpu/cpu_messages.h"

namespace ddprun::worker {
namespace {

class CpuMessageRequest final : public Request {
 public:
  CpuMessageRequest(CpuPeers& peers, const CpuPeers::Message& message)
      : peers_(peers), message_(message) {}
  bool test() override { return peers_.test(message_); }
  void wait() override { peers_.wait(message_); }

 private:
  CpuPeers& peers_;
  CpuPeers::Message message_;
};

}  // namespace

CpuPeers::Message CpuMessages::post_send(const void* data, std::size_t count, DataType type,
                                         int peer) {
  const CallGuard::Inside inside(peers_.guard());
  const Call call = peers_.guard().begin_message("send", data, count, type, peer, true);
  return {call, peer, true,
          peers_.streams().post_send(peer, call, 0, data, count * bytes_of(type))};
}

CpuPeers::Message CpuMessages::post_recv(void* data, std::size_t count, DataType type, int peer) {
  const CallGuard::Inside inside(peers_.guard());
  const Call call = peers_.guard().begin_message("recv", data, count, type, peer, false);
  return {call, peer, false,
          peers_.streams().post_receive(peer, call, 0, data, count * bytes_of(type))};
}

void CpuMessages::send(const void* data, std::size_t count, DataType type, int peer) {
  peers_.wait(post_send(data, count, type, peer));
}

void CpuMessages::recv(void* data, std::size_t count, DataType type, int peer) {
  peers_.wait(post_recv(data, count, type, peer));
}

std::unique_ptr<Request> CpuMessages::isend(const void* data, std::size_t count, DataType type,
                                            int peer) {
  auto request = std::make_unique<CpuMessageRequest>(peers_, post_send(data, count, type, peer));
  request->test();  // A small message is on its way at once.
  return request;
}

std::unique_ptr<Request> CpuMessages::irecv(void* data, std::size_t count, DataType type,
                                            int peer) {
  return std::make_unique<CpuMessageRequest>(peers_, post_recv(data, count, type, peer));
}

}  // namespace ddprun::worker
