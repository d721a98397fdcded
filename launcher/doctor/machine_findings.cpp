// One function for each thing that is looked at: it knows the threshold, and why it is where it is.
#include "launcher/doctor/machine_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "launcher/doctor/finding_list.h"
#include "launcher/doctor/gpu_findings.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/loopback_address.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;

constexpr std::uint64_t mib = 1 << 20, gib = 1 << 30;

class Examination : private FindingList {
 public:
  Examination(const MachineFacts& facts, const MachinePlace& place)
      : FindingList(place.number, place.name), facts_(facts), place_(place) {}

  Findings run();

 private:
  void examine_loopback();
  void examine_own_name();
  void examine_interface();
  void examine_wished_interface(const std::string& variable, const std::string& wish);
  void examine_open_files();
  void examine_locked_memory();
  void examine_processes();
  void examine_shared_memory();
  void examine_temporary();
  void examine_memory();
  void examine_cpus();
  void examine_secret();

  const MachineFacts& facts_;
  const MachinePlace& place_;
};

std::string limit_text(std::uint64_t limit) {
  return limit == no_limit ? "unlimited" : std::to_string(limit);
}

// Made by container runtimes, virtual machines and VPNs; on each host there is one of the same
// addresses, or one that no other host of the job is on.
bool is_host_internal(const std::string& name) {
  constexpr std::array<const char*, 9> kinds = {"docker",  "br-",  "virbr",  "veth", "cni",
                                                "flannel", "cali", "podman", "lxc"};
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const char* kind) { return name.rfind(kind, 0) == 0; });
}

// As NCCL and Gloo read their variables: several with commas, the start of a name; "=" wants the
// whole name and "^" all others.
bool wish_is_met(const std::string& wish, const std::vector<NetworkInterface>& interfaces) {
  const bool others = wish[0] == '^';
  const bool exact = wish.find('=') < 2;
  const std::string names = wish.substr((others ? 1U : 0U) + (exact ? 1U : 0U));
  const auto is_named = [&](const std::string& name) {
    for (std::size_t begin = 0; begin <= names.size();) {
      const std::size_t end = std::min(names.find(',', begin), names.size());
      const std::string one = names.substr(begin, end - begin);
      if (!one.empty() && (exact ? name == one : name.rfind(one, 0) == 0)) return true;
      begin = end + 1;
    }
    return false;
  };
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const NetworkInterface& each) {
    return each.is_up && is_named(each.name) != others;
  });
}

void Examination::examine_loopback() {
  if (facts_.loopback_problem.empty()) return green("loopback", "127.0.0.1 answers");
  red("loopback", facts_.loopback_problem, "The workers of a node meet their launcher there.",
      "ip link set lo up");
}

void Examination::examine_own_name() {
  if (facts_.names.empty()) return;
  const ResolvedName& own = facts_.names.front();
  const std::string reason =
      "Gloo, and whoever else announces this machine by its name, offers that address to the "
      "other hosts. ddprun itself announces the address of its connection.";
  const std::string remedy = "give " + own.name +
                             " the address of the network in /etc/hosts, or set "
                             "GLOO_SOCKET_IFNAME to the interface";
  if (!own.problem.empty()) {
    return amber("own name", fmt::format("{} does not resolve: {}", own.name, own.problem), reason,
                 remedy);
  }
  const std::string value = fmt::format("{} is {}", own.name, fmt::join(own.addresses, ", "));
  const bool leads_back =
      std::all_of(own.addresses.begin(), own.addresses.end(), rendezvous::is_loopback_address);
  if (!leads_back) return green("own name", value);
  // Debian gives every machine 127.0.1.1, which hurts nobody who stays on it.
  if (place_.alone) return green("own name", value + ", which would matter with several hosts");
  amber("own name", value + ": the loopback interface", reason, remedy);
}

void Examination::examine_interface() {
  if (place_.address.empty()) {
    std::string value = "127.0.0.1, for a job on this machine alone";
    if (!facts_.default_interface.empty()) value += "; to other hosts " + facts_.default_interface;
    return green("interface", value);
  }
  const NetworkInterface* chosen = interface_of(facts_, place_.address);
  if (chosen == nullptr) {
    // Behind address translation, or a name.
    return green("interface", fmt::format("{}: {}", place_.address, place_.address_reason));
  }
  const std::string value = fmt::format("{} {}, MTU {}: {}", chosen->name, place_.address,
                                        chosen->mtu, place_.address_reason);
  if (is_host_internal(chosen->name)) {
    return amber("interface", value,
                 chosen->name +
                     " belongs to containers or virtual machines of this host; most "
                     "often no other host is on it.",
                 "name the host in -H by an address of the real network, or give it one in "
                 "~/.ssh/config");
  }
  green("interface", value);
}

void Examination::examine_wished_interface(const std::string& variable, const std::string& wish) {
  if (wish.empty() || wish_is_met(wish, facts_.interfaces)) return;
  std::vector<std::string> there;
  for (const NetworkInterface& each : facts_.interfaces) {
    if (each.is_up) there.push_back(each.name);
  }
  red(variable,
      fmt::format("{} names no interface that is up (there are {})", wish, fmt::join(there, ", ")),
      "Workers that read the variable end at their first collective.",
      fmt::format("unset {}, or name one that `ip -br addr` lists", variable));
}

void Examination::examine_open_files() {
  constexpr std::uint64_t enough = 4'096, least = 256;
  const ResourceLimit& limit = facts_.open_files;
  const std::string value =
      fmt::format("{} (at most {})", limit_text(limit.soft), limit_text(limit.hard));
  // The launcher raises its own soft limit to the hard one; workers get the soft one back.
  if (limit.hard < least) {
    return red("open files", value,
               "A launcher needs pipes and files for each worker, and a connection for each.",
               "ulimit -Hn 65536, or nofile in /etc/security/limits.conf");
  }
  if (limit.hard < enough) {
    return amber("open files", value,
                 "Data loader processes and many connections need more than that.",
                 "ulimit -Hn 65536, or nofile in /etc/security/limits.conf");
  }
  if (limit.soft < 1'024) {
    return amber("open files", value, "Workers get the first number, and data loaders need more.",
                 "ulimit -n 65536");
  }
  green("open files", value);
}

void Examination::examine_locked_memory() {
  const std::uint64_t soft = facts_.locked_memory.soft;
  const std::string value = soft == no_limit ? "unlimited" : size_text(soft);
  if (facts_.has_infiniband && soft < gib) {
    return red("locked memory", value,
               "There are InfiniBand or RoCE cards, and NCCL must register buffers of more than "
               "that with them.",
               "ulimit -l unlimited, or memlock in /etc/security/limits.conf; under Slurm "
               "PropagateResourceLimitsExcept=MEMLOCK; in a container --ulimit memlock=-1");
  }
  green("locked memory", value);
}

void Examination::examine_processes() {
  constexpr std::uint64_t enough = 2'048;
  const std::uint64_t limit = std::min(facts_.processes.soft, facts_.cgroup_pids_max);
  const std::string value = limit_text(limit);
  if (limit < enough) {
    const bool by_group = facts_.cgroup_pids_max < facts_.processes.soft;
    return amber("processes", value + (by_group ? " (of the control group)" : ""),
                 "Threads count too: each worker has some for computing, data and collectives.",
                 by_group ? "in a container --pids-limit 16384; in systemd TasksMax="
                          : "ulimit -u 16384, or nproc in /etc/security/limits.conf");
  }
  green("processes", value);
  green("core files", facts_.core_file.soft == 0          ? "none are written (ulimit -c 0)"
                      : facts_.core_file.soft == no_limit ? "unlimited"
                                                          : size_text(facts_.core_file.soft));
}

void Examination::examine_shared_memory() {
  const FolderSpace& space = facts_.shared_memory;
  const std::string enlarge =
      "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory at "
      "/dev/shm; else mount -o remount,size=8g /dev/shm";
  const std::string reason =
      "Data loader processes, NCCL and sums between workers of this machine keep their buffers "
      "there; when it is full they die of SIGBUS.";
  if (!space.problem.empty()) {
    return red("/dev/shm", space.problem, reason, "mount a tmpfs there: " + enlarge);
  }
  const std::string value =
      fmt::format("{}, {} free", size_text(space.bytes), size_text(space.free_bytes));
  // Docker's own size, 64 MiB, is the one that people meet.
  if (space.bytes <= 64 * mib) return amber("/dev/shm", value, reason, enlarge);
  if (space.free_bytes < 256 * mib || space.free_bytes < space.bytes / 20) {
    return amber("/dev/shm", value, reason,
                 "remove what dead programs have left there (ls -l /dev/shm); or " + enlarge);
  }
  green("/dev/shm", value);
}

void Examination::examine_temporary() {
  const FolderSpace& space = facts_.temporary;
  const std::string reason = "The launcher keeps its sockets and the workers' error files there.";
  const std::string remedy = "set TMPDIR to a folder with room, or empty " + space.path;
  if (!space.problem.empty()) {
    const std::string value = fmt::format("{}: {}", space.path, space.problem);
    if (facts_.temporary_instead.empty()) return red("TMPDIR", value, reason, remedy);
    return amber("TMPDIR", fmt::format("{}; {} instead", value, facts_.temporary_instead), reason,
                 remedy);
  }
  const std::string value = fmt::format("{}, {} free", space.path, size_text(space.free_bytes));
  if (space.free_bytes < 16 * mib || space.free_files < 64) {
    return red("TMPDIR", space.free_files < 64 ? space.path + ", no inodes left" : value, reason,
               remedy);
  }
  if (space.free_bytes < gib) {
    return amber("TMPDIR", value, reason + " Compilers of kernels and data sets use it as well.",
                 remedy);
  }
  green("TMPDIR", value);
}

void Examination::examine_memory() {
  const std::uint64_t limit = facts_.cgroup_memory_max;
  const std::uint64_t left =
      limit == no_limit ? no_limit : limit - std::min(limit, facts_.cgroup_memory_used);
  const std::uint64_t free = std::min(left, facts_.memory_available);
  std::string value = free == no_limit ? "unknown" : size_text(free) + " free";
  if (limit != no_limit) value += fmt::format(", of {} for this control group", size_text(limit));
  if (free < gib) {
    return amber("memory", value,
                 "A worker with LibTorch takes some hundred MiB before it has a model, and who "
                 "goes beyond the limit is killed without a word (exit status 137).",
                 limit != no_limit && left <= facts_.memory_available
                     ? "a higher limit: docker run --memory, resources.limits.memory, sbatch --mem"
                     : "end what else runs there (ps aux --sort -rss), or fewer workers");
  }
  green("memory", value);
}

void Examination::examine_cpus() {
  const double quota = facts_.cgroup_cpus;
  if (quota > 0 && quota < facts_.cpus) {
    return amber(
        "CPUs",
        fmt::format("a quota of {:.3g}, though {} can be used", quota, counted(facts_.cpus, "CPU")),
        "Threads are counted by the CPUs that are seen and then held up by the quota: "
        "all ranks wait for the one that is held up.",
        "--omp-threads auto, which shares out the quota, or one of whole CPUs with a matching "
        "cpuset");
  }
  green("CPUs", std::to_string(facts_.cpus));
}

void Examination::examine_secret() {
  if (!facts_.secret_problem.empty()) {
    return amber("secret", facts_.secret_problem,
                 "A job of several hosts that is started by hand needs it; ddprun -H makes one for "
                 "each job.",
                 "chmod 600 " + facts_.secret_file + ", or --secret-file FILE");
  }
  if (facts_.secret_file.empty()) return green("secret", "none, and no home folder to make it in");
  green("secret", facts_.secret_proof.empty() ? "none yet; made when one is needed" : "there");
}

Findings Examination::run() {
  examine_loopback();
  examine_own_name();
  examine_interface();
  examine_wished_interface("NCCL_SOCKET_IFNAME", facts_.nccl_interface);
  examine_wished_interface("GLOO_SOCKET_IFNAME", facts_.gloo_interface);
  examine_open_files();
  examine_locked_memory();
  examine_processes();
  examine_shared_memory();
  examine_temporary();
  examine_memory();
  examine_cpus();
  examine_gpus(facts_.gpu, *this);
  examine_secret();
  return take();
}

}  // namespace

const NetworkInterface* interface_of(const MachineFacts& facts, const std::string& address) {
  for (const NetworkInterface& each : facts.interfaces) {
    for (const std::string& own : each.addresses) {
      if (own == address) return &each;
    }
  }
  return nullptr;
}

std::string size_text(std::uint64_t bytes) {
  if (bytes == no_limit) return "unlimited";
  constexpr std::array<const char*, 5> units = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double size = static_cast<double>(bytes) / 1'024;
  std::size_t unit = 0;
  for (; size >= 1'000 && unit + 1 < units.size(); ++unit) size /= 1'024;
  return size < 10 ? fmt::format("{:.2g} {}", size, units[unit])
                   : fmt::format("{:.0f} {}", size, units[unit]);
}

Findings examine_machine(const MachineFacts& facts, const MachinePlace& place) {
  return Examination(facts, place).run();
}

}  // namespace ddprun::launcher
