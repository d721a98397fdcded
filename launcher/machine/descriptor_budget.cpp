// The sums behind the shares. A worker costs its agent up to 8 descriptors (two pipes or a
// terminal, two log files, error file, pidfd) and some more for the moment of its start; those of
// the attempt before may still be open then.
#include "launcher/machine/descriptor_budget.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

constexpr std::size_t of_agent = 128;
constexpr std::size_t per_worker = 16;
constexpr std::size_t per_node = 2;  // A node that comes back may be here twice for a moment.
constexpr std::size_t strangers_max = 1'024;
constexpr std::size_t strangers_min = 16;
constexpr std::size_t store_max = 65'536;
constexpr std::size_t store_min = 64;  // A limit this low fails in any case, but says why.

}  // namespace

DescriptorBudget share_descriptors(std::size_t limit, int workers, int nodes_max) {
  const std::size_t own = of_agent + per_worker * static_cast<std::size_t>(workers) +
                          per_node * static_cast<std::size_t>(nodes_max);
  const std::size_t rest = limit > own ? limit - own : 0;
  DescriptorBudget budget;
  budget.strangers = std::clamp(rest / 8, strangers_min, strangers_max);
  const std::size_t left = rest > 2 * budget.strangers ? rest - 2 * budget.strangers : 0;
  budget.store_connections = std::clamp(left, store_min, store_max);
  return budget;
}

}  // namespace ddprun::launcher
