// Who may have how many of this process's file descriptors.
//
// The launcher needs some to restart workers: pipes, pidfds, error files. Were they given to
// whoever connects, the next failure of a worker would end the job (exit status 70) for want of a
// pipe. So its own part is set aside first, and the others get shares of the rest.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun::launcher {

struct DescriptorBudget {
  std::size_t store_connections = 0;
  // Of those: half of them where there are other hosts, so that one cannot take them all.
  std::size_t store_connections_per_address = 0;
  // Connections that have proved nothing: so many before their first byte, and as many after it.
  std::size_t strangers = 0;
};

// `limit`: RLIMIT_NOFILE. `workers`: of this node, with its spares. `nodes_max`: each has a control
// connection.
DescriptorBudget share_descriptors(std::size_t limit, int workers, int nodes_max);

// Why no job of `workers` on this node can begin when so many of `limit` are free; "" when it may.
std::string descriptors_problem(std::size_t free, std::size_t limit, int workers);

// The same for who hosts a job of `nodes`, once its endpoint is open.
std::string nodes_problem(std::size_t free, std::size_t limit, int workers, int nodes);

// Why so many workers of all nodes have no place in the store; "" when they have.
std::string store_problem(const DescriptorBudget& budget, int workers);

}  // namespace ddprun::launcher
