// What the kernel allows, and what the control group's quota leaves of it.
#include "worker/cpus_at_once.h"

#include <thread>

#include "rendezvous/host/control_group.h"

namespace ddprun::worker {

int cpus_at_once() {
  return rendezvous::cpus_at_once(rendezvous::read_control_group(""),
                                  static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace ddprun::worker
