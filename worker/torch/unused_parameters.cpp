// The table of policies: what is allowed to be missing, by whether it is the first reduction.
#include "worker/torch/unused_parameters.h"

namespace ddprun::worker {

UnusedParameters unused_parameters(bool find_unused_parameters, bool static_graph) {
  if (static_graph) return UnusedParameters::FoundOnce;
  return find_unused_parameters ? UnusedParameters::FoundEveryTime : UnusedParameters::Refused;
}

ReductionPolicy reduction_policy(UnusedParameters unused, bool first_reduction) {
  switch (unused) {
    case UnusedParameters::FoundEveryTime:
      // Which gradients arrive, and so their order, may differ in the next backward: no order is
      // better than the one that the parameters were registered in.
      return {true, false, false, "any parameter may be unused in any backward"};
    case UnusedParameters::FoundOnce:
      if (first_reduction) return {true, true, true, "the first backward shows what is unused"};
      return {false, false, false, "what is unused has no bucket since the first backward"};
    case UnusedParameters::Refused:
      break;
  }
  return {false, first_reduction, false, "every parameter has a gradient in every backward"};
}

}  // namespace ddprun::worker
