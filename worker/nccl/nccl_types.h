// What this project names in NCCL's words: element types, operations, and the id by which the ranks
// of a communicator find each other.
#pragma once

#include <nccl.h>

#include <string>

#include "worker/communicator.h"

namespace ddprun::worker {

ncclDataType_t to_nccl(DataType type);
ncclRedOp_t to_nccl(ReduceOp op);

// As text, which travels with a rank's address.
std::string to_text(const ncclUniqueId& id);
// Throws CommunicatorError where it is none.
ncclUniqueId parse_nccl_id(const std::string& text);

}  // namespace ddprun::worker
