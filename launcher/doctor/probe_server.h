// Where a probe lets others connect: on the port of the rendezvous and on one that the kernel
// chose.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "launcher/doctor/probe_message.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

class ProbeServer {
 public:
  // Of several that have a part in one job each has another `token`; a connection that does not
  // know it is closed. `rendezvous_port`: 0 = none.
  Listening listen(const std::string& token, int rendezvous_port);

  // What is to be waited for, and then what came of it.
  void add_to(std::vector<pollfd>& wanted) const;
  void serve(const std::vector<pollfd>& ready);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Guest {
    rendezvous::UniqueFd socket;
    TimePoint since;
    std::string greeting;
    bool known = false;
    std::size_t received = 0;  // After the greeting.
  };

  void accept(int listener);
  // False: it is to be closed.
  bool serve(Guest& guest);
  bool greet(Guest& guest);
  bool take(Guest& guest, std::size_t size);

  std::string token_;
  std::vector<rendezvous::UniqueFd> listeners_;
  std::vector<Guest> guests_;
};

}  // namespace ddprun::launcher
