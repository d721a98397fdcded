// What a reduction does about parameters that got no gradient. A core: no sockets, threads or
// clock.
#pragma once

#include <string_view>

namespace ddprun::worker {

enum class UnusedParameters {
  Refused,         // Each parameter has a gradient in every backward.
  FoundEveryTime,  // find_unused_parameters: any may lack one, in any backward.
  FoundOnce,       // static_graph: those that lack one in the first step of all ranks always do.
};

// FoundOnce where both are asked for, as PyTorch has it.
UnusedParameters unused_parameters(bool find_unused_parameters, bool static_graph);

struct ReductionPolicy {
  // The end of backward gives the peers zeros for what is missing, and all ranks count who used
  // what. Otherwise a missing gradient leaves the reduction unfinished.
  bool looks_for_unused;
  // Afterwards the buckets follow the order in which gradients arrived on rank 0.
  bool settles_order;
  // Afterwards parameters that no rank used are in no bucket.
  bool drops_unused;
  std::string_view reason;
};

ReductionPolicy reduction_policy(UnusedParameters unused, bool first_reduction);

}  // namespace ddprun::worker
