// What a worker does with the environment that its launcher sends it over the channel of
// rendezvous/contract/spare_channel.h, as a spare or as one that has lived through an attempt.
#pragma once

#include "rendezvous/contract/spare_channel.h"

namespace ddprun::worker {

// setenv: no other thread may read the environment meanwhile.
void take_environment(const rendezvous::Environment& environment);

// The descriptor that a variable of this process names; -1: it names none.
int descriptor_of(const char* variable);

}  // namespace ddprun::worker
