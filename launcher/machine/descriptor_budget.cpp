// The sums behind the shares. A worker costs its agent up to 8 descriptors (two pipes or a
// terminal, two log files, error file, pidfd) and some more for the moment of its start; those of
// the attempt before may still be open then.
#include "launcher/machine/descriptor_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/counted.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t of_agent = 128;
constexpr std::size_t per_worker = 16;
constexpr std::size_t per_node = 2;  // A node that comes back may be here twice for a moment.
constexpr std::size_t strangers_max = 1'024;
constexpr std::size_t strangers_min = 16;
constexpr std::size_t store_max = 65'536;
constexpr std::size_t store_min = 64;  // A limit this low fails in any case, but says why.
// What there must be before a worker is tried: the event loop, the signals, the status socket, its
// folder and the watch over its name, the endpoint and both ends of this agent's own connection to
// it. With one less, the endpoint could never accept that connection, and the agent would wait for
// it until the join time-out. From here on what is missing is missed when it is asked for, and
// named then.
constexpr std::size_t free_min = 15;
constexpr std::size_t free_min_per_worker = 2;
constexpr std::size_t free_min_of_host = 2;  // Once it listens: its own connection's ends.

}  // namespace

DescriptorBudget share_descriptors(std::size_t limit, int workers, int nodes_max) {
  const std::size_t own = of_agent + per_worker * static_cast<std::size_t>(workers) +
                          per_node * static_cast<std::size_t>(nodes_max);
  const std::size_t rest = limit > own ? limit - own : 0;
  DescriptorBudget budget;
  budget.strangers = std::clamp(rest / 8, strangers_min, strangers_max);
  const std::size_t left = rest > 2 * budget.strangers ? rest - 2 * budget.strangers : 0;
  budget.store_connections = std::clamp(left, store_min, store_max);
  budget.store_connections_per_address =
      nodes_max > 1 ? budget.store_connections / 2 : budget.store_connections;
  return budget;
}

std::string descriptors_problem(std::size_t free, std::size_t limit, int workers) {
  const std::size_t needed = free_min + free_min_per_worker * static_cast<std::size_t>(workers);
  if (free >= needed) return "";
  return fmt::format(
      "the limit of open files is {}, of which {} are free, and a launcher with {} needs {} file "
      "descriptors at the very least: raise it (ulimit -n)",
      limit, free, rendezvous::counted(workers, "worker"), needed);
}

std::string nodes_problem(std::size_t free, std::size_t limit, int workers, int nodes) {
  const std::size_t needed = free_min_of_host + static_cast<std::size_t>(nodes - 1) +
                             free_min_per_worker * static_cast<std::size_t>(workers);
  if (free >= needed) return "";
  return fmt::format(
      "the limit of open files is {}, of which {} are free, and the host of a job of {} needs {} "
      "file descriptors at the very least, one for each other node among them: raise it "
      "(ulimit -n)",
      limit, free, rendezvous::counted(nodes, "node"), needed);
}

std::string store_problem(const DescriptorBudget& budget, int workers) {
  if (static_cast<std::size_t>(workers) <= budget.store_connections) return "";
  return fmt::format(
      "this host's limit of open files leaves {} connections for the job's store, and {} workers "
      "are to use it, each with one at least, as PyTorch's do: raise the limit (ulimit -n)",
      budget.store_connections, workers);
}

}  // namespace ddprun::launcher
