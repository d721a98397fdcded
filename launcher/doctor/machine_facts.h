// What `ddprun doctor` asks of one machine and of one pair of machines: values alone, so that what
// is made of them can be tested without such a machine. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ddprun::launcher {

constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

struct NetworkInterface {
  std::string name;
  bool is_up = false;
  bool is_loopback = false;
  int mtu = 0;
  std::vector<std::string> addresses;  // Numeric.
};

struct ResolvedName {
  std::string name;
  std::vector<std::string> addresses;
  std::string problem;  // The resolver's words, when there is none.
};

struct ResourceLimit {
  std::uint64_t soft = no_limit;
  std::uint64_t hard = no_limit;
};

struct FolderSpace {
  std::string path;
  std::string problem;  // It is not there, nothing can be written to it; "" = it can.
  std::uint64_t bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_files = no_limit;  // Inodes; no_limit where the file system counts none.
};

// One of those that a job would have.
struct GpuState {
  int index = 0;                    // As nvidia-smi counts.
  bool answers = true;              // False: it is lost.
  std::uint64_t memory_used = 0;    // By everybody.
  std::uint64_t memory_total = 0;   // 0: the driver does not say.
  std::vector<int> pids;            // That compute on it.
  std::string slowed;               // "by heat: ..."; "" = not, or the driver does not say.
  std::uint64_t memory_errors = 0;  // Uncorrectable, since the driver was loaded.
  bool needs_reset = false;         // To take defective memory out of use.
  bool is_worn_out = false;         // No spare memory is left for that.
};

struct GpuFacts {
  int count = 0;                    // As --nproc-per-node gpu counts them.
  int cards = 0;                    // NVIDIA's on the PCI bus, with or without a driver.
  std::string driver;               // Version of the kernel module; "" = none is loaded.
  std::string driver_library;       // Version in the name of libcuda's file; "" = unknown.
  bool has_driver_library = false;  // libcuda.so.1 can be opened.
  std::string cuda;                 // "12.4", the newest that the driver runs.
  std::string nccl;                 // "2.21.5", of the libnccl.so.2 that the loader finds.
  bool is_silent = false;           // The driver did not answer within some seconds.
  std::vector<GpuState> states;
};

struct MachineFacts {
  std::string version;  // Of ddprun.
  std::string host_name;
  std::string kernel;
  std::string boot_id;  // With `network`: two hosts that are one machine have both alike.
  std::string network;  // The network namespace.
  std::string loopback_problem;
  std::vector<ResolvedName> names;  // The machine's own first, then those that were asked for.
  std::vector<NetworkInterface> interfaces;
  std::string default_interface;  // Which way packets to strangers leave; "" = there is none.
  std::string nccl_interface;     // NCCL_SOCKET_IFNAME
  std::string gloo_interface;     // GLOO_SOCKET_IFNAME
  ResourceLimit open_files, locked_memory, processes, core_file;
  FolderSpace shared_memory;      // /dev/shm
  FolderSpace temporary;          // TMPDIR
  std::string temporary_instead;  // Where a job's files go if it cannot be written; "" = nowhere.
  std::uint64_t memory_available = no_limit;
  std::uint64_t cgroup_memory_max = no_limit, cgroup_memory_used = 0;
  double cgroup_cpus = 0;  // Its quota; 0 = none.
  std::uint64_t cgroup_pids_max = no_limit;
  int cpus = 0;  // That a process may run on.
  bool has_infiniband = false;
  GpuFacts gpu;
  int slots = 1;               // As --nproc-per-node auto counts.
  std::string secret_file;     // "" = no home folder.
  std::string secret_problem;  // Why it cannot be used.
  std::string secret_proof;    // Of the nonce that was sent; "" = there is no secret.
};

// How an attempt to connect ended. What each means stands in group_findings.cpp.
enum class Reached { Untried, Yes, Refused, NoAnswer, NoRoute, NoName, Stranger, Failed };

struct PairFacts {
  int from = 0;
  int to = 0;
  std::string address;  // Of `to`, that was tried.
  Reached rendezvous = Reached::Untried;
  Reached ephemeral = Reached::Untried;
  std::string words;           // The system's, of what failed.
  bool large_stalled = false;  // Small messages pass, large ones do not.
  double latency_s = 0;        // Of a round trip.
  double bytes_per_s = 0;
};

}  // namespace ddprun::launcher
