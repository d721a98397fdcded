// How programs on top of workers name this machine and count things in messages: as ddprun itself.
#pragma once

#include "rendezvous/counted.h"
#include "rendezvous/host_name.h"

namespace ddprun::worker {

using rendezvous::counted;
using rendezvous::own_host_name;

}  // namespace ddprun::worker
