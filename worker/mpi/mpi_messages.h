// Messages between two ranks over MPI: what is called, then the data.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "worker/mpi/mpi_peers.h"

namespace ddprun::worker {

class MpiMessages {
 public:
  explicit MpiMessages(MpiPeers& peers) : peers_(peers) {}
  // Waits a while for messages that send() did not wait for, unless the group is aborted.
  ~MpiMessages();

  // As Communicator has them.
  void send(const void* data, std::size_t count, DataType type, int peer);
  void recv(void* data, std::size_t count, DataType type, int peer);
  std::unique_ptr<Request> isend(const void* data, std::size_t count, DataType type, int peer);
  std::unique_ptr<Request> irecv(void* data, std::size_t count, DataType type, int peer);

  // Moves what nobody waits for; every call of the communicator begins so.
  void move_on();

 private:
  struct Message;
  class MessageRequest;
  std::shared_ptr<Message> make(const char* name, const void* data, std::size_t count,
                                DataType type, int peer, bool sends);
  std::shared_ptr<Message> post_send(const char* name, const void* data, std::size_t count,
                                     DataType type, int peer, bool copies);
  std::shared_ptr<Message> post_receive(const char* name, void* data, std::size_t count,
                                        DataType type, int peer);
  void check_calls(const Message& message);  // Once the header of one to be received is here.
  bool test(Message& message);
  void wait(Message& message);
  void move_buffered();
  void buffer(std::shared_ptr<Message> message);
  void make_room();

  MpiPeers& peers_;
  std::deque<std::shared_ptr<Message>> buffered_;  // Under way, and nobody waits for them.
  std::size_t buffered_bytes_ = 0;                 // That they hold.
};

}  // namespace ddprun::worker
