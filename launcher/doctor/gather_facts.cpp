// System calls, each with the member that it fills; files are machine_files.cpp's.
#include "launcher/doctor/gather_facts.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "launcher/doctor/gpu_states.h"
#include "launcher/doctor/machine_files.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/nvml.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/help.h"
#include "launcher/options/values.h"
#include "launcher/output/run_directory.h"
#include "rendezvous/host/control_group.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/host/interface_addresses.h"
#include "rendezvous/host/kernel_files.h"
#include "rendezvous/secure/job_secret.h"
#include "rendezvous/secure/psk.h"

namespace ddprun::launcher {
namespace {

using rendezvous::first_line_of;
constexpr std::chrono::seconds resolver_most{4};
// It takes a second for each GPU where nothing keeps it ready (nvidia-persistenced).
constexpr std::chrono::seconds driver_most{10};
constexpr std::size_t names_max = 40;

ResolvedName resolve(const std::string& name) {
  ResolvedName result{.name = name, .addresses = {}, .problem = ""};
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &wanted, &found);
  if (error != 0) {
    result.problem = ::gai_strerror(error);
    return result;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const std::string address = rendezvous::numeric_address(one->ai_addr);
    auto& all = result.addresses;
    if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
  }
  return result;
}

// Threads, because a resolver without a server to ask takes 10 s and more for each name. They are
// left alone when the time is up: the probe ends without waiting for them.
std::vector<ResolvedName> resolve_all(const std::vector<std::string>& names) {
  struct Answers {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<ResolvedName> names;
    std::size_t missing = 0;
  };
  const auto answers = std::make_shared<Answers>();
  for (const std::string& name : names) {
    answers->names.push_back(
        {name, {}, fmt::format("no answer from the resolver within {} s", resolver_most.count())});
  }
  answers->missing = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::thread([answers, i, name = names[i]] {
      ResolvedName resolved = resolve(name);
      const std::lock_guard lock(answers->mutex);
      answers->names[i] = std::move(resolved);
      if (--answers->missing == 0) answers->changed.notify_one();
    }).detach();
  }
  std::unique_lock lock(answers->mutex);
  answers->changed.wait_for(lock, resolver_most, [&] { return answers->missing == 0; });
  return answers->names;
}

// In a thread that is left alone as those above: with a GPU that has fallen off the bus the
// driver's library may hang.
std::future<std::vector<GpuReading>> begin_to_read_gpus() {
  std::packaged_task<std::vector<GpuReading>()> read(read_gpus);
  std::future<std::vector<GpuReading>> readings = read.get_future();
  std::thread(std::move(read)).detach();
  return readings;
}

std::vector<NetworkInterface> list_interfaces() {
  std::vector<NetworkInterface> result;
  for (const rendezvous::InterfaceAddress& one : rendezvous::interface_addresses()) {
    auto known = std::find_if(result.begin(), result.end(), [&](const NetworkInterface& each) {
      return each.name == one.interface;
    });
    if (known == result.end()) {
      const auto mtu = first_line_of("/sys/class/net/" + one.interface + "/mtu");
      known = result.insert(result.end(), {.name = one.interface,
                                           .is_up = one.up,
                                           .is_loopback = one.loopback,
                                           .mtu = std::atoi(mtu.c_str()),
                                           .addresses = {}});
    }
    if (!one.address.empty()) known->addresses.push_back(one.address);
  }
  return result;
}

ResourceLimit limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<decltype(RLIMIT_NOFILE)>(resource), &limit) != 0) return {};
  const auto number = [](rlim_t value) {
    return value == RLIM_INFINITY ? no_limit : static_cast<std::uint64_t>(value);
  };
  return {number(limit.rlim_cur), number(limit.rlim_max)};
}

FolderSpace space_of(const std::string& path) {
  FolderSpace space;
  space.path = path;
  struct statvfs system {};
  if (::statvfs(path.c_str(), &system) != 0 || ::access(path.c_str(), W_OK | X_OK) != 0) {
    space.problem = std::strerror(errno);
    return space;
  }
  space.bytes = static_cast<std::uint64_t>(system.f_blocks) * system.f_frsize;
  space.free_bytes = static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
  if (system.f_files > 0) space.free_files = system.f_favail;
  return space;
}

std::string first_that_can_be_written() {
  for (const TemporaryPlace& place : temporary_places()) {
    if (space_of(place.path).problem.empty()) return place.path;
  }
  return "";
}

// Who does not have the secret learns nothing from the proof, and of two hosts with the same nonce
// only whether theirs are equal.
void prove_secret(const std::string& nonce, MachineFacts& facts) {
  const auto named = environment_variable("DDPRUN_SECRET_FILE");
  facts.secret_file =
      named && !named->empty() ? *named : rendezvous::usual_secret_file(environment_variable);
  std::error_code error;
  if (facts.secret_file.empty() || !std::filesystem::exists(facts.secret_file, error)) return;
  try {
    const rendezvous::SecretBytes secret = rendezvous::read_secret(facts.secret_file);
    const rendezvous::SecretBytes proof =
        rendezvous::hkdf_sha256(secret.bytes(), "ddprun doctor", nonce, 12);
    for (const unsigned char byte : proof.bytes()) {
      facts.secret_proof += fmt::format("{:02x}", byte);
    }
  } catch (const std::exception& problem) {
    facts.secret_problem = problem.what();
  }
}

std::string network_name() {
  std::error_code error;
  const auto link = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return error ? "" : link.string();
}

int slots_here() {
  try {
    return parse_nproc({"auto", "auto"}, environment_variable);
  } catch (const UsageExit&) {
    return 1;
  }
}

}  // namespace

MachineFacts gather_facts(const std::vector<std::string>& names, const std::string& nonce) {
  MachineFacts facts;
  const auto driver_until = std::chrono::steady_clock::now() + driver_most;
  std::future<std::vector<GpuReading>> readings = begin_to_read_gpus();
  facts.version = version_text();
  facts.host_name = rendezvous::own_host_name();
  utsname system{};
  if (::uname(&system) == 0) {
    facts.kernel = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  }
  facts.boot_id = first_line_of("/proc/sys/kernel/random/boot_id");
  facts.network = network_name();
  facts.loopback_problem = loopback_problem();
  std::vector<std::string> all{facts.host_name};
  all.insert(all.end(), names.begin(),
             names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), names_max)));
  facts.names = resolve_all(all);
  facts.interfaces = list_interfaces();
  facts.default_interface = read_default_interface("");
  facts.nccl_interface = environment_variable("NCCL_SOCKET_IFNAME").value_or("");
  facts.gloo_interface = environment_variable("GLOO_SOCKET_IFNAME").value_or("");
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.processes = limit_of(RLIMIT_NPROC);
  facts.core_file = limit_of(RLIMIT_CORE);
  facts.shared_memory = space_of("/dev/shm");
  const auto temporary = environment_variable("TMPDIR");
  facts.temporary = space_of(temporary && !temporary->empty() ? *temporary : "/tmp");
  if (!facts.temporary.problem.empty()) facts.temporary_instead = first_that_can_be_written();
  facts.memory_available = read_available_memory("");
  const rendezvous::ControlGroup group = rendezvous::read_control_group("");
  facts.cgroup_memory_max = group.memory_max;
  facts.cgroup_memory_used = group.memory_used;
  facts.cgroup_cpus = group.cpus;
  facts.cgroup_pids_max = group.pids_max;
  facts.cpus = usable_cpus();
  std::error_code error;
  facts.has_infiniband = std::filesystem::is_directory("/sys/class/infiniband", error) &&
                         !std::filesystem::is_empty("/sys/class/infiniband", error);
  facts.gpu.count = count_gpus(environment_variable("CUDA_VISIBLE_DEVICES"), "/dev");
  read_gpu_files("", facts.gpu);
  ask_gpu_libraries(facts.gpu);
  facts.gpu.is_silent = readings.wait_until(driver_until) != std::future_status::ready;
  if (!facts.gpu.is_silent) {
    facts.gpu.states = gpu_states(readings.get(), environment_variable("CUDA_VISIBLE_DEVICES"));
  }
  facts.slots = slots_here();
  prove_secret(nonce, facts);
  return facts;
}

}  // namespace ddprun::launcher
