// On which hosts a job runs and with how many workers on each, as users of mpirun, Slurm and MLX
// write it down. A core: no sockets, threads or clock.
//
//   -H         a:8,b:8   user@a,b   gpu[01-16]:8   [fd00::1]:8
//   hostfile   the same, one a line, also with "slots=8" or "slots = 8", "#" begins a comment;
//              or mlx.launch's JSON: [{"ssh": "a", "ips": ["10.0.0.1"]}, ...]
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::launcher {

constexpr std::size_t hosts_max = 65'536;
constexpr int workers_of_host_max = 4'096;  // As --nproc-per-node takes.

struct Host {
  std::string login;  // What ssh is given: "user@a", an alias, an address without brackets.
  std::string name;   // The same without the user.
  std::optional<int> workers;          // Nothing: as many as --nproc-per-node says.
  std::vector<std::string> addresses;  // For data, where they differ from the login's.

  bool operator==(const Host&) const = default;
};

struct HostList {
  std::vector<Host> hosts;             // No login twice. The first one is node 0.
  std::vector<std::string> variables;  // "NAME=value" for all workers, from JSON's "envs".
};

// What is wrong with a list, and where: "hosts.txt:3: ...".
class HostListError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Both throw HostListError, also for a list without a host. A host that is named again gets the
// workers of both places, one where there is no number, as in mpirun and PBS's node files.
HostList parse_host_list(const std::string& text);
HostList parse_hostfile(const std::string& content, const std::string& file);

// "gpu[08-10]" -> gpu08, gpu09, gpu10; several brackets: the first counts slowest.
std::vector<std::string> expand_ranges(const std::string& pattern);

}  // namespace ddprun::launcher
