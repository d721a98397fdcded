// Where a job stands on this node, as one value: what ddprun status shows, top draws and others
// export.
//
// A core: values in, text out. parse_snapshot() reads what came through a socket of this user's own
// folder, perhaps from a launcher of another version: unknown fields are passed over, missing ones
// keep their defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/machine/gpu_clock.h"

namespace ddprun::launcher {

// What a worker says of itself; nothing of it is there for a program that says nothing.
struct RankProgress {
  std::int64_t step = -1;         // Steps of the job that are done; -1 = not said, as below.
  std::int64_t total_steps = -1;  // Of the job.
  std::int64_t epoch = -1;        // From 1, as people count.
  std::string phase;              // "forward", "all-reduce" ...; "" = not said.
  std::int64_t images = 0;        // That this process has trained on, since its start.
  double images_per_s = 0;        // Of this rank, over its last steps.
  std::optional<double> loss;     // The last one that it looked at.
  double step_s = 0;              // Of a step, over the last ones; of it ...
  double data_s = 0;              // ... waiting for data ...
  double wait_s = 0;              // ... and for other ranks.
  double data_total_s = 0;        // Since the process's start.
  double wait_total_s = 0;
  std::optional<double> age_s;      // Since it said anything.
  std::optional<double> waiting_s;  // In a collective, for others; nothing: it does not wait.
  // Of this machine's clock, and told to nobody: another one is another word, or another wait.
  std::int64_t said_at_ns = 0;
  std::int64_t waiting_since_ns = 0;
};

// What the kernel knows of a worker with all the processes below it.
struct ProcessUse {
  int processes = 0;  // 0 = it is gone.
  int threads = 0;
  std::int64_t rss_bytes = 0;  // Pages that several share count for each.
  double cpu_s = 0;            // Since the start, also of children that have ended.
  char state = '?';            // Of the worker itself, as in /proc/PID/stat.
};

// What NVIDIA's driver tells of the GPU that a worker uses.
struct GpuUse {
  int index = 0;                   // As nvidia-smi counts.
  double busy = -1;                // Share of the last moment with a kernel at work, of whomever.
  std::int64_t memory_used = -1;   // By everybody, in bytes; -1, here and above: not told.
  std::int64_t memory_total = -1;  //
  std::int64_t own_bytes = -1;     // Of it, by this worker and all below it.
  GpuClock clock;
};

enum class RankState {
  Running,
  Parked,     // Left the last attempt and waits for a place in the next one.
  Succeeded,  // Exit code 0.
  Failed,     // Ended with `exit_code` or by `signal`.
  Stopped,    // The same, after the launcher had asked it to.
};

struct RankSnapshot {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  RankState state = RankState::Running;
  int exit_code = 0;
  int signal = 0;
  ProcessUse use;
  std::optional<GpuUse> gpu;  // Nothing: none, or nobody tells of it.
  std::optional<RankProgress> progress;
  std::string stdout_file;  // "" = none.
  std::string stderr_file;
  // By all_ranks(), and told to nobody: at which other node (-1: at this one, as it is now), and
  // how old it may be.
  int at_other = -1;
  double old_s = 0;
};

// A failure that ended an attempt. It stays, however many attempts follow.
struct SeenFailure {
  std::int64_t time_unix_s = 0;
  int attempt = 0;
  int rank = -1;     // -1: no worker to blame.
  std::string host;  // Where.
  std::string text;  // One line: who, and of what.
  std::string what;  // "" or what it said itself, in one line.
};

enum class NodeState {
  Waiting,    // For other nodes, or for the coordinator.
  Running,    //
  Succeeded,  // All workers here; others may be at work.
  Stopping,   // Workers are asked to end.
  Stopped,    // No worker; waits for the next attempt or the end.
  Done,       // The launcher is about to end.
  Checking,   // No worker; --node-check is asked whether this node is fit.
};

// Who holds the others up, and how that is known.
struct Slowest {
  int rank = 0;
  std::string why;
};

// Another node of the job: what its launcher has told, and how old that is.
struct NodeView {
  std::string host;
  int node_rank = -1;   // -1: in no round yet.
  std::string address;  // With `port`: where it would coordinate the job; 0: nowhere.
  int port = 0;
  std::optional<double> silent_s;  // Since its launcher was heard by the coordinator.
  std::optional<double> age_s;     // Since it told what follows. Nothing: it has told nothing.

  std::string launcher_id;
  int launcher_pid = 0;
  NodeState state = NodeState::Waiting;
  double taken_s = 0;  // On that machine's clock.
  double since_s = 0;
  int attempt = 0;
  int first_rank = 0;
  int workers = 0;
  std::string log_dir;
  std::vector<RankSnapshot> ranks;
};

struct JobSnapshot {
  int version = 1;  // Of this format; grows when a field changes its meaning.
  std::string run_id;
  std::string program;
  std::string host;
  std::string launcher_id;  // Random: containers of one host may have equal pids.
  int launcher_pid = 0;
  std::int64_t started_unix_s = 0;
  double taken_s = 0;  // On the machine's monotonic clock: for differences of two snapshots.

  NodeState state = NodeState::Waiting;
  double since_s = 0;  // In the attempt, or waiting for the first one.
  int attempt = 0;
  int attempts = 0;  // That this node has been in.
  int term = 0;
  int max_restarts = 0;
  int node_rank = -1;  // -1: in no round yet.
  int nodes = 0;
  int first_rank = 0;
  int workers = 1;  // Of this node.
  int world_size = 0;
  std::string master;  // HOST:PORT of the store, once there is an attempt.
  int spares = 0;
  int spares_ready = 0;
  std::string log_dir;  // Of this attempt; "" = no log files.

  std::vector<RankSnapshot> ranks;    // Of this node.
  std::vector<NodeView> others;       // The job's other nodes, by their ranks.
  std::vector<SeenFailure> failures;  // The oldest first; the last ones of `failures_total`.
  int failures_total = 0;
};

const char* name_of(NodeState state);  // "running"
const char* name_of(RankState state);

// Of the GPU's memory what the worker has where the driver says so, else what all have; -1:
// unknown.
std::int64_t shown_bytes(const GpuUse& gpu);

// Whose a snapshot is, without the rest of it.
struct LauncherIdentity {
  std::string host;
  std::string launcher_id;
  int launcher_pid = 0;
};

// Of LauncherIdentity, JobSnapshot and NodeView any two. By their ids; one of an older version has
// none, and is known by its host and pid.
template <typename One, typename Other>
bool is_same_launcher(const One& one, const Other& other) {
  if (!one.launcher_id.empty() && !other.launcher_id.empty()) {
    return one.launcher_id == other.launcher_id;
  }
  return one.host == other.host && one.launcher_pid == other.launcher_pid;
}

bool has_ended(const RankSnapshot& rank);

// Of a worker that has ended what it said last stays true, but it does nothing any more, at no
// pace.
RankProgress progress_of_ended(const RankProgress& progress);

// Of a step, on the average of the last ones: until this rank waits for others.
double own_time_s(const RankProgress& progress);

// Nobody where ranks are equal, or say nothing. Those of a silent node are left out, and nobody is
// behind by steps that others may have done since its node told of it.
std::optional<Slowest> slowest_of(const std::vector<RankSnapshot>& ranks);

// Of all nodes, by their numbers; those of a node that has long told nothing are as it told them.
std::vector<RankSnapshot> all_ranks(const JobSnapshot& job);

// A node that has not been heard for longer says nothing of now.
constexpr double node_silent_s = 3;
bool is_silent(const NodeView& node);

// One line, without its end.
std::string to_json(const JobSnapshot& snapshot);

// Who wrote it. Of another machine's each text is made visible and cut, and of lists a part is
// taken that no job needs more than.
enum class Writer { OwnHost, Peer };
// Nothing when it is no such object.
std::optional<JobSnapshot> parse_snapshot(std::string_view text, Writer writer = Writer::OwnHost);

// What a node tells its coordinator: one line of at most `bytes_max`, for which ranks are left out
// at the end where there are too many.
std::string node_to_json(const JobSnapshot& own, std::size_t bytes_max);
std::optional<NodeView> parse_node(std::string_view text);

}  // namespace ddprun::launcher
