// Messages between two ranks over MPI: what is called, then the data.
#include <algorithm>

#include "worker/mpi/mpi_communicator.h"

namespace ddprun::worker {
namespace {

// Messages up to this size are copied, so that two ranks that send to each other first do not wait
// for each other: MPI alone promises that for no size.
constexpr std::size_t copied_bytes_max = 256 << 10;

}  // namespace

struct MpiCommunicator::Message {
  Call call;    // What this rank calls ...
  Call theirs;  // ... and, for a receive, what the peer called.
  int peer = 0;
  bool sends = false;
  Transfers header;
  Transfers data;
  std::vector<unsigned char> copy;
};

class MpiCommunicator::MessageRequest final : public Request {
 public:
  MessageRequest(MpiCommunicator& communicator, std::shared_ptr<Message> message)
      : communicator_(communicator), message_(std::move(message)) {}
  // MPI writes into the message until it is done.
  ~MessageRequest() override { communicator_.buffered_.push_back(message_); }
  bool test() override { return communicator_.test(*message_); }
  void wait() override { communicator_.wait(*message_); }

 private:
  MpiCommunicator& communicator_;
  std::shared_ptr<Message> message_;
};

std::shared_ptr<MpiCommunicator::Message> MpiCommunicator::start_message(
    const char* name, const void* data, std::size_t count, DataType type, int peer, bool sends) {
  if (peer < 0 || peer >= world_size_ || peer == rank_) {
    throw CommunicatorError(std::string(name) + ": there is no other rank " + std::to_string(peer) +
                            " among " + std::to_string(world_size_));
  }
  auto message = std::make_shared<Message>();
  message->call.kind = CallKind::Message;
  message->call.count = count;
  message->call.type = type;
  message->call.sequence = ++(sends ? sent_ : received_)[static_cast<std::size_t>(peer)];
  message->peer = peer;
  message->sends = sends;
  if (aborted_) throw_aborted(message->call);
  require(count <= SIZE_MAX / 16, message->call, "this many elements do not fit any memory");
  require(data != nullptr || count == 0, message->call, "the data is a null pointer");
  const std::size_t bytes = count * bytes_of(type);
  if (!sends) {
    post_receive(message->header, &message->theirs, sizeof(Call), peer, header_tag);
    post_receive(message->data, const_cast<void*>(data), bytes, peer, data_tag);
    return message;
  }
  if (bytes <= copied_bytes_max) {
    const auto* from = static_cast<const unsigned char*>(data);
    message->copy.assign(from, from + bytes);
    data = message->copy.data();
  }
  post_send(message->header, &message->call, sizeof(Call), peer, header_tag);
  post_send(message->data, data, bytes, peer, data_tag);
  return message;
}

bool MpiCommunicator::test(Message& message) {
  if (!message.header.requests.empty()) {
    if (!advance(message.call, message.header)) return false;
    message.header = {};
    if (!message.sends && message.theirs != message.call) {
      fail(message.call, describe_mismatch(rank_, message.call, message.peer, message.theirs));
    }
  }
  if (message.data.requests.empty()) return true;
  if (!advance(message.call, message.data)) return false;
  message.data = {};
  return true;
}

void MpiCommunicator::wait(Message& message) {
  const Running running{message.call, Clock::now() + timeout_};
  if (!message.header.requests.empty()) wait(running, message.header);
  test(message);  // Compares the calls.
  if (!message.data.requests.empty()) wait(running, message.data);
}

void MpiCommunicator::move_buffered() {
  while (!buffered_.empty() && test(*buffered_.front())) buffered_.pop_front();
}

void MpiCommunicator::send(const void* data, std::size_t count, DataType type, int peer, Stream) {
  move_buffered();
  const auto message = start_message("send", data, count, type, peer, true);
  if (count * bytes_of(type) <= copied_bytes_max) {
    buffered_.push_back(message);
    move_buffered();
  } else {
    wait(*message);
  }
}

void MpiCommunicator::recv(void* data, std::size_t count, DataType type, int peer, Stream) {
  move_buffered();
  wait(*start_message("recv", data, count, type, peer, false));
}

std::unique_ptr<Request> MpiCommunicator::isend(const void* data, std::size_t count, DataType type,
                                                int peer, Stream) {
  return std::make_unique<MessageRequest>(*this,
                                          start_message("isend", data, count, type, peer, true));
}

std::unique_ptr<Request> MpiCommunicator::irecv(void* data, std::size_t count, DataType type,
                                                int peer, Stream) {
  return std::make_unique<MessageRequest>(*this,
                                          start_message("irecv", data, count, type, peer, false));
}

}  // namespace ddprun::worker
