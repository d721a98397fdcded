// Messages between pairs of workers, after the PyTorch tutorial "Writing Distributed Applications".
//
//   ddprun --standalone --nproc-per-node 2 build/bin/send_recv
//
// or by hand, on one host or two, without a launcher:
//
//   send_recv tcp://HOST:29500 0 2      and      send_recv tcp://HOST:29500 1 2
//
// With four workers or more, ranks 0 and 1 are a pair, 2 and 3, and so on.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/meeting.h"

using namespace ddprun::worker;

namespace {

// The other one of this rank's pair: 0 and 1, 2 and 3 ...
int peer_of(const Communicator& communicator) { return communicator.rank() ^ 1; }

// send() and recv() return when the data is on its way, or here. Each send needs its recv, with
// the same count and type, in the same order.
void blocking(Communicator& communicator) {
  float number = 0;
  const int peer = peer_of(communicator);
  if (communicator.rank() < peer) {
    number = 1;
    communicator.send(&number, 1, DataType::Float32, peer);
  } else {
    communicator.recv(&number, 1, DataType::Float32, peer);
  }
  std::cout << "rank " << communicator.rank() << " has the number " << number << std::endl;
}

// isend() and irecv() return at once, with a request. Until it is done the memory belongs to the
// communicator: do not write to what is being sent, do not read what is being received.
void non_blocking(Communicator& communicator) {
  const int peer = peer_of(communicator);
  const std::vector<float> mine(1'000'000, static_cast<float>(communicator.rank()) + 0.5f);
  std::vector<float> theirs(mine.size());

  // Both send first. With send() alone each would wait for the other to receive.
  const auto sending = communicator.isend(mine.data(), mine.size(), DataType::Float32, peer);
  const auto receiving = communicator.irecv(theirs.data(), theirs.size(), DataType::Float32, peer);

  long looks = 0;
  while (!receiving->test()) ++looks;  // Time for other work; each test() also moves data.
  sending->wait();
  std::cout << "rank " << communicator.rank() << " has " << theirs.size() << " numbers, the last "
            << theirs.back() << ", and could look elsewhere " << (looks > 0 ? "meanwhile" : "never")
            << std::endl;
}

InitMethod init_method(int argc, char** argv) {
  InitMethod method;  // What the launcher says.
  if (argc == 4) {    // What the command line says.
    method.url = argv[1];
    method.rank = std::stoi(argv[2]);
    method.world_size = std::stoi(argv[3]);
  }
  return method;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const WorkerEnv env = read_worker_env(init_method(argc, argv));
    if (env.world_size % 2 != 0) {
      std::cerr << "send_recv is for pairs of workers, not for " << env.world_size
                << ": start an even number of them" << std::endl;
      return 2;
    }
    const auto communicator = make_cpu_communicator(meet_workers(env));
    blocking(*communicator);
    non_blocking(*communicator);
    communicator->barrier();  // Neither leaves while the other still needs it.
    return 0;
  } catch (const std::exception& error) {  // A peer that died ends the call that waits for it.
    std::cerr << "send_recv: " << error.what() << std::endl;
    return 1;
  }
}
