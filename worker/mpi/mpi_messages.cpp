// A message is two transfers, so that a peer that called something else is found out before its
// data is taken for ours.
#include "worker/mpi/mpi_messages.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace ddprun::worker {
namespace {

// send() copies messages up to this size, so that two ranks that send to each other first do not
// wait for each other: MPI alone promises that for no size.
constexpr std::size_t copied_bytes_max = 256 << 10;
// ... as long as all that is under way is no more than this. A peer that takes messages slower than
// they are sent would cost any amount of memory.
constexpr std::size_t buffered_bytes_max = 32 << 20;
// Of those that nobody waits for so many are looked at in a call: with thousands under way, a look
// at all of them would cost more than the call. Each call adds one at most.
constexpr std::size_t looks_max = 32;
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

  bool is_done() const { return header.requests.empty() && data.requests.empty(); }
  std::size_t held_bytes() const { return sizeof(Message) + copy.size(); }
};

class MpiMessages::MessageRequest final : public Request {
 public:
  MessageRequest(MpiMessages& messages, std::shared_ptr<Message> message)
      : messages_(messages), message_(std::move(message)) {}
  // MPI reads and writes the message until it is done, also after a wait that failed.
  ~MessageRequest() override {
    if (!message_->is_done()) messages_.buffer(std::move(message_));
  }
  bool test() override {
    const CallGuard::Inside inside(messages_.peers_.guard());
    return messages_.test(*message_);
  }
  void wait() override { messages_.wait(*message_); }

 private:
  MpiMessages& messages_;
  std::shared_ptr<Message> message_;
};

std::shared_ptr<MpiMessages::Message> MpiMessages::make(const char* name, const void* data,
                                                        std::size_t count, DataType type, int peer,
                                                        bool sends) {
  auto message = std::make_shared<Message>();
  message->call = peers_.guard().begin_message(name, data, count, type, peer, sends);
  message->peer = peer;
  message->sends = sends;
  return message;
}

std::shared_ptr<MpiMessages::Message> MpiMessages::post_send(const char* name, const void* data,
                                                             std::size_t count, DataType type,
                                                             int peer, bool copies) {
  const CallGuard::Inside inside(peers_.guard());
  auto message = make(name, data, count, type, peer, true);
  const std::size_t bytes = count * bytes_of(type);
  if (copies) {
    const auto* from = static_cast<const unsigned char*>(data);
    message->copy.assign(from, from + bytes);
    data = message->copy.data();
  }
  peers_.post_send(message->header, &message->call, sizeof(Call), peer, header_tag);
  peers_.post_send(message->data, data, bytes, peer, data_tag);
  return message;
}

std::shared_ptr<MpiMessages::Message> MpiMessages::post_receive(const char* name, void* data,
                                                                std::size_t count, DataType type,
                                                                int peer) {
  const CallGuard::Inside inside(peers_.guard());
  auto message = make(name, data, count, type, peer, false);
  peers_.post_receive(message->header, &message->theirs, sizeof(Call), peer, header_tag);
  peers_.post_receive(message->data, data, count * bytes_of(type), peer, data_tag);
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

void MpiMessages::buffer(std::shared_ptr<Message> message) {
  buffered_bytes_ += message->held_bytes();
  buffered_.push_back(std::move(message));
}

// In turn: a receive that its peer does not meet for long must not keep what was sent after it.
void MpiMessages::move_buffered() {
  for (std::size_t looks = std::min(looks_max, buffered_.size()); looks > 0; --looks) {
    const bool done = test(*buffered_.front());
    if (done) {
      buffered_bytes_ -= buffered_.front()->held_bytes();
    } else {
      buffered_.push_back(buffered_.front());
    }
    buffered_.pop_front();
  }
}

// Waits for peers to take what was sent; for each message no longer than a call may last.
void MpiMessages::make_room() {
  while (buffered_bytes_ > buffered_bytes_max) {
    const auto sent = std::find_if(buffered_.begin(), buffered_.end(),
                                   [](const auto& message) { return message->sends; });
    if (sent == buffered_.end()) return;
    wait(**sent);
    move_on();
  }
}

MpiMessages::~MpiMessages() {
  if (peers_.control().is_cut_off()) return;
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
  make_room();
  const bool copies = count * bytes_of(type) <= copied_bytes_max;
  MessageRequest request(*this, post_send("send", data, count, type, peer, copies));
  if (!copies) request.wait();
}

void MpiMessages::recv(void* data, std::size_t count, DataType type, int peer) {
  move_on();
  MessageRequest(*this, post_receive("recv", data, count, type, peer)).wait();
}

std::unique_ptr<Request> MpiMessages::isend(const void* data, std::size_t count, DataType type,
                                            int peer) {
  move_on();
  return std::make_unique<MessageRequest>(
      *this, post_send("isend", data, count, type, peer, /*copies=*/false));
}

std::unique_ptr<Request> MpiMessages::irecv(void* data, std::size_t count, DataType type,
                                            int peer) {
  move_on();
  return std::make_unique<MessageRequest>(*this, post_receive("irecv", data, count, type, peer));
}

}  // namespace ddprun::worker
