// The JSON form, field by field in both directions, and the judgement who is slow.
#include "launcher/watch/job_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "rendezvous/control/clean_text.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using SnapshotJson = nlohmann::ordered_json;

constexpr const char* node_state_names[] = {"waiting", "running", "succeeded", "stopping",
                                            "stopped", "done",    "checking"};
constexpr const char* rank_state_names[] = {"running", "parked", "succeeded", "failed", "stopped"};

template <class State, std::size_t count>
State state_named(const char* const (&names)[count], const std::string& name, State otherwise) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  return found == std::end(names) ? otherwise : static_cast<State>(found - std::begin(names));
}

template <class Value>
SnapshotJson or_null(const std::optional<Value>& value) {
  return value ? SnapshotJson(*value) : SnapshotJson(nullptr);
}

SnapshotJson said_or_null(std::int64_t value) {
  return value < 0 ? SnapshotJson(nullptr) : SnapshotJson(value);
}

// A number that is none (a loss may be) has no form in JSON.
SnapshotJson finite_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? SnapshotJson(*value) : SnapshotJson(nullptr);
}

SnapshotJson json_of(const RankProgress& progress) {
  return {{"step", said_or_null(progress.step)},
          {"total_steps", said_or_null(progress.total_steps)},
          {"epoch", said_or_null(progress.epoch)},
          {"phase", progress.phase},
          {"images", progress.images},
          {"images_per_s", finite_or_null(progress.images_per_s)},
          {"loss", finite_or_null(progress.loss)},
          {"step_s", finite_or_null(progress.step_s)},
          {"data_s", finite_or_null(progress.data_s)},
          {"wait_s", finite_or_null(progress.wait_s)},
          {"data_total_s", finite_or_null(progress.data_total_s)},
          {"wait_total_s", finite_or_null(progress.wait_total_s)},
          {"age_s", finite_or_null(progress.age_s)},
          {"waiting_s", finite_or_null(progress.waiting_s)}};
}

SnapshotJson json_of(const GpuUse& gpu) {
  return {{"index", gpu.index},
          {"busy", gpu.busy < 0 ? SnapshotJson(nullptr) : SnapshotJson(gpu.busy)},
          {"memory_used_bytes", said_or_null(gpu.memory_used)},
          {"memory_total_bytes", said_or_null(gpu.memory_total)},
          {"own_bytes", said_or_null(gpu.own_bytes)},
          {"slowed_by", gpu.clock.slowdown == Slowdown::Unknown
                            ? SnapshotJson(nullptr)
                            : SnapshotJson(name_of(gpu.clock.slowdown))},
          {"clock_mhz", said_or_null(gpu.clock.mhz)},
          {"clock_max_mhz", said_or_null(gpu.clock.max_mhz)},
          {"temperature_c", said_or_null(gpu.clock.celsius)}};
}

SnapshotJson json_of(const RankSnapshot& rank) {
  SnapshotJson object = {
      {"rank", rank.rank},
      {"local_rank", rank.local_rank},
      {"pid", rank.pid},
      {"state", name_of(rank.state)},
      {"exit_code", rank.exit_code},
      {"signal", rank.signal == 0 ? SnapshotJson(nullptr)
                                  : SnapshotJson(rendezvous::signal_name(rank.signal))},
      {"signal_number", rank.signal},
      {"processes", rank.use.processes},
      {"threads", rank.use.threads},
      {"rss_bytes", rank.use.rss_bytes},
      {"cpu_s", rank.use.cpu_s},
      {"kernel_state", std::string(1, rank.use.state)},
      {"stdout_file", rank.stdout_file},
      {"stderr_file", rank.stderr_file}};
  object["gpu"] = rank.gpu ? json_of(*rank.gpu) : SnapshotJson(nullptr);
  object["progress"] = rank.progress ? json_of(*rank.progress) : SnapshotJson(nullptr);
  return object;
}

SnapshotJson json_of(const SeenFailure& failure) {
  return {{"time_unix_s", failure.time_unix_s},
          {"attempt", failure.attempt},
          {"rank", failure.rank},
          {"host", failure.host},
          {"text", failure.text},
          {"what", failure.what}};
}

// Of what another machine has written; no rank, path or message of ours is longer.
constexpr std::size_t peer_text_bytes_max = 1'024;
constexpr std::size_t peer_list_max = 65'536;
// Beyond these nothing is a count or a time, and sums of two must not overflow.
constexpr std::int64_t count_most = 1'000'000'000;
constexpr double number_most = 1e15;

// Reads a field where it is, and of the type that it should be of.
class Fields {
 public:
  Fields(const nlohmann::json& object, Writer writer) : object_(object), writer_(writer) {}

  void get(const char* name, std::string& value) const {
    const auto* found = find(name);
    if (!found || !found->is_string()) return;
    value = *found;
    if (writer_ == Writer::OwnHost) return;
    value = rendezvous::visible_text(
        rendezvous::clean_text(value, peer_text_bytes_max, rendezvous::Keep::Head),
        rendezvous::Lines::Escape);
  }
  void get(const char* name, int& value) const {
    std::int64_t number = value;
    get(name, number);
    value = static_cast<int>(std::clamp<std::int64_t>(number, -count_most, count_most));
  }
  void get(const char* name, std::int64_t& value) const {
    const auto* found = find(name);
    if (!found || !found->is_number_integer()) return;
    const bool fits = !found->is_number_unsigned() ||
                      found->get<std::uint64_t>() < static_cast<std::uint64_t>(INT64_MAX);
    if (fits) value = *found;
  }
  void get(const char* name, double& value) const {
    const auto* found = find(name);
    if (found && found->is_number())
      value = std::clamp(found->get<double>(), -number_most, number_most);
  }
  void get(const char* name, std::optional<double>& value) const {
    double number = 0;
    const auto* found = find(name);
    if (!found || !found->is_number()) return;
    get(name, number);
    value = number;
  }
  std::string text(const char* name) const {
    std::string value;
    get(name, value);
    return value;
  }
  // Calls `each` with the elements of a list that are objects.
  template <class Each>
  void list(const char* name, Each each) const {
    const auto* found = find(name);
    if (found == nullptr || !found->is_array()) return;
    std::size_t left = writer_ == Writer::Peer ? peer_list_max : found->size();
    for (const nlohmann::json& element : *found) {
      if (left-- == 0) return;
      if (element.is_object()) each(Fields(element, writer_));
    }
  }
  std::optional<Fields> object(const char* name) const {
    const auto* found = find(name);
    return found && found->is_object() ? std::optional(Fields(*found, writer_)) : std::nullopt;
  }

 private:
  const nlohmann::json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  const nlohmann::json& object_;
  Writer writer_;
};

RankProgress progress_of(const Fields& fields) {
  RankProgress progress;
  fields.get("step", progress.step);
  fields.get("total_steps", progress.total_steps);
  fields.get("epoch", progress.epoch);
  fields.get("phase", progress.phase);
  fields.get("images", progress.images);
  fields.get("images_per_s", progress.images_per_s);
  fields.get("loss", progress.loss);
  fields.get("step_s", progress.step_s);
  fields.get("data_s", progress.data_s);
  fields.get("wait_s", progress.wait_s);
  fields.get("data_total_s", progress.data_total_s);
  fields.get("wait_total_s", progress.wait_total_s);
  fields.get("age_s", progress.age_s);
  fields.get("waiting_s", progress.waiting_s);
  return progress;
}

GpuUse gpu_of(const Fields& fields) {
  GpuUse gpu;
  fields.get("index", gpu.index);
  fields.get("busy", gpu.busy);
  fields.get("memory_used_bytes", gpu.memory_used);
  fields.get("memory_total_bytes", gpu.memory_total);
  fields.get("own_bytes", gpu.own_bytes);
  gpu.clock.slowdown = slowdown_named(fields.text("slowed_by"));
  fields.get("clock_mhz", gpu.clock.mhz);
  fields.get("clock_max_mhz", gpu.clock.max_mhz);
  fields.get("temperature_c", gpu.clock.celsius);
  return gpu;
}

RankSnapshot rank_of(const Fields& fields) {
  RankSnapshot rank;
  fields.get("rank", rank.rank);
  fields.get("local_rank", rank.local_rank);
  fields.get("pid", rank.pid);
  rank.state = state_named(rank_state_names, fields.text("state"), RankState::Running);
  fields.get("exit_code", rank.exit_code);
  fields.get("signal_number", rank.signal);
  fields.get("processes", rank.use.processes);
  fields.get("threads", rank.use.threads);
  fields.get("rss_bytes", rank.use.rss_bytes);
  fields.get("cpu_s", rank.use.cpu_s);
  if (const std::string state = fields.text("kernel_state"); !state.empty()) {
    rank.use.state = state[0];
  }
  fields.get("stdout_file", rank.stdout_file);
  fields.get("stderr_file", rank.stderr_file);
  if (const auto gpu = fields.object("gpu")) rank.gpu = gpu_of(*gpu);
  if (const auto said = fields.object("progress")) rank.progress = progress_of(*said);
  return rank;
}

// Without what is as a reader takes it anyway, for there may be thousands.
SnapshotJson short_json_of(const RankSnapshot& rank) {
  SnapshotJson object = json_of(rank);
  for (const char* name : {"exit_code", "signal_number"}) {
    if (object[name] == 0) object.erase(name);
  }
  for (const char* name : {"stdout_file", "stderr_file"}) {
    if (object[name].get_ref<const std::string&>().empty()) object.erase(name);
  }
  for (const char* name : {"signal", "gpu"}) {
    if (object[name].is_null()) object.erase(name);
  }
  return object;
}

SnapshotJson node_head(const NodeView& node) {
  return {{"launcher_id", node.launcher_id}, {"launcher_pid", node.launcher_pid},
          {"state", name_of(node.state)},    {"taken_s", node.taken_s},
          {"since_s", node.since_s},         {"attempt", node.attempt},
          {"first_rank", node.first_rank},   {"workers", node.workers},
          {"log_dir", node.log_dir}};
}

SnapshotJson json_of(const NodeView& node) {
  SnapshotJson object = {{"host", node.host},
                         {"node_rank", node.node_rank},
                         {"address", node.address},
                         {"port", node.port},
                         {"silent_s", finite_or_null(node.silent_s)},
                         {"age_s", finite_or_null(node.age_s)}};
  object.update(node_head(node));
  object["ranks"] = SnapshotJson::array();
  for (const RankSnapshot& rank : node.ranks) object["ranks"].push_back(short_json_of(rank));
  return object;
}

NodeView node_of(const Fields& fields) {
  NodeView node;
  fields.get("host", node.host);
  fields.get("node_rank", node.node_rank);
  fields.get("address", node.address);
  fields.get("port", node.port);
  fields.get("silent_s", node.silent_s);
  fields.get("age_s", node.age_s);
  fields.get("launcher_id", node.launcher_id);
  fields.get("launcher_pid", node.launcher_pid);
  node.state = state_named(node_state_names, fields.text("state"), NodeState::Waiting);
  fields.get("taken_s", node.taken_s);
  fields.get("since_s", node.since_s);
  fields.get("attempt", node.attempt);
  fields.get("first_rank", node.first_rank);
  fields.get("workers", node.workers);
  fields.get("log_dir", node.log_dir);
  fields.list("ranks", [&](const Fields& each) { node.ranks.push_back(rank_of(each)); });
  return node;
}

SeenFailure failure_of(const Fields& fields) {
  SeenFailure failure;
  fields.get("time_unix_s", failure.time_unix_s);
  fields.get("attempt", failure.attempt);
  fields.get("rank", failure.rank);
  fields.get("host", failure.host);
  fields.get("text", failure.text);
  fields.get("what", failure.what);
  return failure;
}

// ---- who is slow ----

// A step more or less is where ranks are at any moment.
constexpr double steps_apart = 2;
constexpr double standing_s = 1;      // Longer than a moment of the scheduler's, and ...
constexpr double standing_steps = 3;  // ... than so many steps of its own.
constexpr double least_share = 0.1;   // Of a step; ranks that differ by less are equal.

std::string phase_text(const RankProgress& progress) {
  return progress.phase.empty() ? "" : " (" + progress.phase + ")";
}

bool stands_still(const RankProgress& progress) {
  const double age = progress.age_s.value_or(0);
  return age > standing_s && age > standing_steps * progress.step_s;
}

// How many steps `ahead` had done more when `slow` was heard of, at least. Of two nodes one may
// have told half a second before the other, and in that time steps go by.
double steps_behind(const RankSnapshot& slow, const RankSnapshot& ahead) {
  const double steps =
      static_cast<double>(ahead.progress->step) - static_cast<double>(slow.progress->step);
  if (slow.at_other == ahead.at_other) return steps;
  // A rank that has said nothing since then is where it was.
  const double since_s = slow.old_s - ahead.progress->age_s.value_or(0);
  if (since_s <= 0) return steps;
  const double one_s = slow.progress->step_s, other_s = ahead.progress->step_s;
  const double step_s =
      one_s > 0 && other_s > 0 ? std::min(one_s, other_s) : std::max(one_s, other_s);
  // Where nobody knows how long a step is, it has to stand still to be behind.
  return step_s > 0 ? steps - since_s / step_s : std::min(steps, 1.0);
}

// Others are at a later step, or wait in this one. Of several the one that does not wait itself: a
// rank that waits says nothing either.
std::optional<Slowest> behind(const std::vector<const RankSnapshot*>& ranks) {
  const auto by_step = [](const RankSnapshot* a, const RankSnapshot* b) {
    if (a->progress->step != b->progress->step) return a->progress->step < b->progress->step;
    return !a->progress->waiting_s && b->progress->waiting_s;
  };
  const auto [last, first] = std::minmax_element(ranks.begin(), ranks.end(), by_step);
  const RankProgress& slow = *(*last)->progress;
  const bool stands = stands_still(slow);
  const bool awaited =
      !slow.waiting_s && (*first)->progress->waiting_s.value_or(0) > standing_s && stands;
  const double steps = std::floor(steps_behind(**last, **first));
  const bool same_step = (*first)->progress->step == slow.step;
  if (slow.step < 0 || (same_step ? !awaited : steps < (stands ? 1 : steps_apart))) {
    return std::nullopt;
  }
  std::string why = same_step ? fmt::format("is awaited by others{}", phase_text(slow))
                              : fmt::format("is {:.0f} {} behind{}", steps,
                                            steps == 1 ? "step" : "steps", phase_text(slow));
  if (stands) why += fmt::format(", silent for {:.0f} s", slow.age_s.value_or(0));
  return Slowest{(*last)->rank, why};
}

// The steps of all are as long, because all wait for the slowest: what differs is the time that a
// rank needs until it comes to the others.
std::optional<Slowest> needs_most(std::vector<const RankSnapshot*> ranks) {
  std::sort(ranks.begin(), ranks.end(), [](const RankSnapshot* a, const RankSnapshot* b) {
    return own_time_s(*a->progress) > own_time_s(*b->progress);
  });
  const RankProgress& usual = *ranks[ranks.size() / 2]->progress;
  const double slow_s = own_time_s(*ranks.front()->progress), usual_s = own_time_s(usual);
  if (usual.step_s <= 0 || slow_s - usual_s < least_share * usual.step_s) return std::nullopt;
  return Slowest{ranks.front()->rank,
                 fmt::format("needs {:.1f} ms a step before it waits, others {:.1f} ms",
                             1e3 * slow_s, 1e3 * usual_s)};
}

}  // namespace

const char* name_of(NodeState state) { return node_state_names[static_cast<int>(state)]; }
const char* name_of(RankState state) { return rank_state_names[static_cast<int>(state)]; }

std::int64_t shown_bytes(const GpuUse& gpu) {
  return gpu.own_bytes >= 0 ? gpu.own_bytes : gpu.memory_used;
}

bool has_ended(const RankSnapshot& rank) {
  return rank.state != RankState::Running && rank.state != RankState::Parked;
}

RankProgress progress_of_ended(const RankProgress& progress) {
  RankProgress last;
  last.step = progress.step;
  last.total_steps = progress.total_steps;
  last.epoch = progress.epoch;
  last.images = progress.images;
  last.loss = progress.loss;
  last.data_total_s = progress.data_total_s;
  last.wait_total_s = progress.wait_total_s;
  return last;
}

double own_time_s(const RankProgress& progress) {
  return std::max(progress.step_s - progress.wait_s, 0.0);
}

std::optional<Slowest> slowest_of(const std::vector<RankSnapshot>& ranks) {
  std::vector<const RankSnapshot*> telling;
  for (const RankSnapshot& rank : ranks) {
    const bool tells = rank.state == RankState::Running && rank.progress;
    if (tells && rank.old_s <= node_silent_s) telling.push_back(&rank);
  }
  if (telling.size() < 2) return std::nullopt;
  if (auto found = behind(telling)) return found;
  return needs_most(std::move(telling));
}

std::vector<RankSnapshot> all_ranks(const JobSnapshot& job) {
  std::vector<RankSnapshot> ranks = job.ranks;
  for (std::size_t i = 0; i < job.others.size(); ++i) {
    const NodeView& node = job.others[i];
    const double untold_s = node.age_s.value_or(std::numeric_limits<double>::infinity());
    for (const RankSnapshot& rank : node.ranks) {
      RankSnapshot& each = ranks.emplace_back(rank);
      each.at_other = static_cast<int>(i);
      each.old_s = std::max(untold_s, node.silent_s.value_or(0));
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const RankSnapshot& a, const RankSnapshot& b) { return a.rank < b.rank; });
  return ranks;
}

bool is_silent(const NodeView& node) {
  return !node.age_s || *node.age_s > node_silent_s || node.silent_s.value_or(0) > node_silent_s;
}

std::string to_json(const JobSnapshot& snapshot) {
  SnapshotJson object = {{"version", snapshot.version},
                         {"run_id", snapshot.run_id},
                         {"program", snapshot.program},
                         {"host", snapshot.host},
                         {"launcher_id", snapshot.launcher_id},
                         {"launcher_pid", snapshot.launcher_pid},
                         {"started_unix_s", snapshot.started_unix_s},
                         {"taken_s", snapshot.taken_s},
                         {"state", name_of(snapshot.state)},
                         {"since_s", snapshot.since_s},
                         {"attempt", snapshot.attempt},
                         {"attempts", snapshot.attempts},
                         {"term", snapshot.term},
                         {"max_restarts", snapshot.max_restarts},
                         {"node_rank", snapshot.node_rank},
                         {"nodes", snapshot.nodes},
                         {"first_rank", snapshot.first_rank},
                         {"workers", snapshot.workers},
                         {"world_size", snapshot.world_size},
                         {"master", snapshot.master},
                         {"spares", snapshot.spares},
                         {"spares_ready", snapshot.spares_ready},
                         {"log_dir", snapshot.log_dir}};
  const auto slowest = slowest_of(all_ranks(snapshot));
  object["slowest"] = slowest ? SnapshotJson{{"rank", slowest->rank}, {"why", slowest->why}}
                              : SnapshotJson(nullptr);
  object["ranks"] = SnapshotJson::array();
  for (const RankSnapshot& rank : snapshot.ranks) object["ranks"].push_back(json_of(rank));
  object["others"] = SnapshotJson::array();
  for (const NodeView& node : snapshot.others) object["others"].push_back(json_of(node));
  object["failures_total"] = snapshot.failures_total;
  object["failures"] = SnapshotJson::array();
  for (const SeenFailure& failure : snapshot.failures) {
    object["failures"].push_back(json_of(failure));
  }
  return rendezvous::json_line(object);
}

std::string node_to_json(const JobSnapshot& own, std::size_t bytes_max) {
  SnapshotJson object = node_head({.launcher_id = own.launcher_id,
                                   .launcher_pid = own.launcher_pid,
                                   .state = own.state,
                                   .taken_s = own.taken_s,
                                   .since_s = own.since_s,
                                   .attempt = own.attempt,
                                   .first_rank = own.first_rank,
                                   .workers = own.workers,
                                   .log_dir = own.log_dir});
  object["ranks"] = SnapshotJson::array();
  std::size_t bytes = rendezvous::json_line(object).size();
  for (const RankSnapshot& rank : own.ranks) {
    SnapshotJson each = short_json_of(rank);
    bytes += rendezvous::json_line(each).size() + 1;
    if (bytes > bytes_max) break;
    object["ranks"].push_back(std::move(each));
  }
  return rendezvous::json_line(object);
}

std::optional<NodeView> parse_node(std::string_view text) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("launcher_pid")) return std::nullopt;
  return node_of(Fields(object, Writer::Peer));
}

std::optional<JobSnapshot> parse_snapshot(std::string_view text, Writer writer) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("launcher_pid")) return std::nullopt;
  const Fields fields(object, writer);
  JobSnapshot snapshot;
  fields.get("version", snapshot.version);
  fields.get("run_id", snapshot.run_id);
  fields.get("program", snapshot.program);
  fields.get("host", snapshot.host);
  fields.get("launcher_id", snapshot.launcher_id);
  fields.get("launcher_pid", snapshot.launcher_pid);
  fields.get("started_unix_s", snapshot.started_unix_s);
  fields.get("taken_s", snapshot.taken_s);
  snapshot.state = state_named(node_state_names, fields.text("state"), NodeState::Waiting);
  fields.get("since_s", snapshot.since_s);
  fields.get("attempt", snapshot.attempt);
  fields.get("attempts", snapshot.attempts);
  fields.get("term", snapshot.term);
  fields.get("max_restarts", snapshot.max_restarts);
  fields.get("node_rank", snapshot.node_rank);
  fields.get("nodes", snapshot.nodes);
  fields.get("first_rank", snapshot.first_rank);
  fields.get("workers", snapshot.workers);
  fields.get("world_size", snapshot.world_size);
  fields.get("master", snapshot.master);
  fields.get("spares", snapshot.spares);
  fields.get("spares_ready", snapshot.spares_ready);
  fields.get("log_dir", snapshot.log_dir);
  fields.list("ranks", [&](const Fields& each) { snapshot.ranks.push_back(rank_of(each)); });
  fields.list("others", [&](const Fields& each) { snapshot.others.push_back(node_of(each)); });
  fields.get("failures_total", snapshot.failures_total);
  fields.list("failures",
              [&](const Fields& each) { snapshot.failures.push_back(failure_of(each)); });
  return snapshot;
}

}  // namespace ddprun::launcher
