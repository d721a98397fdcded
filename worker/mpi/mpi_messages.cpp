// A message is two transfers, so that a peer that called something else is found out before its
// data is taken for ours.
#include "worker/mpi/mpi_messages.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace ddprun::worker {
namespace {

// Messages up to this size are copied, so that two ranks that send to each other first do not wait
// for each other: MPI alone promises that for no size.
constexpr std::size_t copied_bytes_max = 256 << 10;
constexpr auto flush_time_max = std::chrono::seconds{10};

}  // namespace

struct MpiMessages::Message {
  Call call;    // What this rank calls ...
  Call theirs;  // ... and, for a receive, what the peer called.
  int peer = 0;
  bool sends = false;
  MpiPeers::Transfers header;
  MpiPeers::Transfers data;
  std::vector<unsigned char> copy;
};

class MpiMessages::MessageRequest final : public Request {
 public:
  MessageRequest(MpiMessages& messages, std::shared_ptr<Message> message)
      : messages_(messages), message_(std::move(message)) {}
  // MPI reads and writes the message until it is done, also after a wait that failed.
  ~MessageRequest() override { messages_.buffered_.push_back(message_); }
  bool test() override {
    const CallGuard::Inside inside(messages_.peers_.guard());
    return messages_.test(*message_);
  }
  void wait() override { messages_.wait(*message_); }

 private:
  MpiMessages& messages_;
  std::shared_ptr<Message> message_;
};

std::shared_ptr<MpiMessages::Message> MpiMessages::post(const char* name, const void* data,
                                                        std::size_t count, DataType type, int peer,
                                                        bool sends) {
  const CallGuard::Inside inside(peers_.guard());
  auto message = std::make_shared<Message>();
  message->call = peers_.guard().begin_message(name, data, count, type, peer, sends);
  message->peer = peer;
  message->sends = sends;
  const std::size_t bytes = count * bytes_of(type);
  if (!sends) {
    peers_.post_receive(message->header, &message->theirs, sizeof(Call), peer, header_tag);
    peers_.post_receive(message->data, const_cast<void*>(data), bytes, peer, data_tag);
    return message;
  }
  if (bytes <= copied_bytes_max) {
    const auto* from = static_cast<const unsigned char*>(data);
    message->copy.assign(from, from + bytes);
    data = message->copy.data();
  }
  peers_.post_send(message->header, &message->call, sizeof(Call), peer, header_tag);
  peers_.post_send(message->data, data, bytes, peer, data_tag);
  return message;
}

void MpiMessages::check_calls(const Message& message) {
  if (message.sends || message.theirs == message.call) return;
  peers_.guard().fail(message.call,
                      describe_mismatch(peers_.rank(), message.call, message.peer, message.theirs));
}

bool MpiMessages::test(Message& message) {
  if (!message.header.requests.empty()) {
    if (!peers_.advance(message.call, message.header)) return false;
    message.header = {};
    check_calls(message);
  }
  if (message.data.requests.empty()) return true;
  if (!peers_.advance(message.call, message.data)) return false;
  message.data = {};
  return true;
}

void MpiMessages::wait(Message& message) {
  const MpiPeers::Running running = peers_.resume(message.call);
  if (!message.header.requests.empty()) {
    peers_.wait(running, message.header);
    check_calls(message);
  }
  if (!message.data.requests.empty()) peers_.wait(running, message.data);
}

void MpiMessages::move_buffered() {
  while (!buffered_.empty() && test(*buffered_.front())) buffered_.pop_front();
}

MpiMessages::~MpiMessages() {
  const auto deadline = MpiPeers::Clock::now() + flush_time_max;
  try {
    while (!buffered_.empty() && !peers_.control().aborted() && MpiPeers::Clock::now() < deadline) {
      move_buffered();
      std::this_thread::yield();
    }
  } catch (const CommunicatorError&) {  // The peers know.
  }
  // What is still under way keeps its memory for as long as the process lives.
  if (!buffered_.empty()) new std::deque<std::shared_ptr<Message>>(std::move(buffered_));
}

void MpiMessages::move_on() {
  const CallGuard::Inside inside(peers_.guard());
  move_buffered();
}

void MpiMessages::send(const void* data, std::size_t count, DataType type, int peer) {
  move_on();
  MessageRequest request(*this, post("send", data, count, type, peer, true));
  if (count * bytes_of(type) > copied_bytes_max) request.wait();
}

void MpiMessages::recv(void* data, std::size_t count, DataType type, int peer) {
  move_on();
  MessageRequest(*this, post("recv", data, count, type, peer, false)).wait();
}

std::unique_ptr<Request> MpiMessages::isend(const void* data, std::size_t count, DataType type,
                                            int peer) {
  return std::make_unique<MessageRequest>(*this, post("isend", data, count, type, peer, true));
}

std::unique_ptr<Request> MpiMessages::irecv(void* data, std::size_t count, DataType type,
                                            int peer) {
  return std::make_unique<MessageRequest>(*this, post("irecv", data, count, type, peer, false));
}

}  // namespace ddprun::worker
