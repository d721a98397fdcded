// The JSON form, field by field in both directions, and the judgement who is slow.
#include "launcher/status/job_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

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

// ---- the fields of each part, once ----

// What a visitor writes, or reads.
template <class Visitor, class Part>
using Visited = std::conditional_t<Visitor::writes, const Part, Part>;

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, RankProgress>& progress) {
  visit.said("step", progress.step);
  visit.said("total_steps", progress.total_steps);
  visit.said("epoch", progress.epoch);
  visit.field("phase", progress.phase);
  visit.field("images", progress.images);
  visit.field("images_per_s", progress.images_per_s);
  visit.field("loss", progress.loss);
  visit.field("step_s", progress.step_s);
  visit.field("data_s", progress.data_s);
  visit.field("wait_s", progress.wait_s);
  visit.field("data_total_s", progress.data_total_s);
  visit.field("wait_total_s", progress.wait_total_s);
  visit.field("age_s", progress.age_s);
  visit.field("waiting_s", progress.waiting_s);
}

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, GpuUse>& gpu) {
  visit.field("index", gpu.index);
  visit.said("busy", gpu.busy);
  visit.said("memory_used_bytes", gpu.memory_used);
  visit.said("memory_total_bytes", gpu.memory_total);
  visit.said("own_bytes", gpu.own_bytes);
  visit.field("slowed_by", gpu.clock.slowdown);
  visit.said("clock_mhz", gpu.clock.mhz);
  visit.said("clock_max_mhz", gpu.clock.max_mhz);
  visit.said("temperature_c", gpu.clock.celsius);
}

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, RankSnapshot>& rank) {
  visit.field("rank", rank.rank);
  visit.field("local_rank", rank.local_rank);
  visit.field("pid", rank.pid);
  visit.field("state", rank.state);
  visit.field("exit_code", rank.exit_code);
  visit.name_of_signal("signal", rank.signal);
  visit.field("signal_number", rank.signal);
  visit.field("processes", rank.use.processes);
  visit.field("threads", rank.use.threads);
  visit.field("rss_bytes", rank.use.rss_bytes);
  visit.field("cpu_s", rank.use.cpu_s);
  visit.field("kernel_state", rank.use.state);
  visit.field("stdout_file", rank.stdout_file);
  visit.field("stderr_file", rank.stderr_file);
  visit.part("gpu", rank.gpu);
  visit.part("progress", rank.progress);
}

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, SeenFailure>& failure) {
  visit.field("time_unix_s", failure.time_unix_s);
  visit.field("attempt", failure.attempt);
  visit.field("rank", failure.rank);
  visit.field("host", failure.host);
  visit.field("text", failure.text);
  visit.field("what", failure.what);
}

// What a node tells of itself: of NodeView, or of JobSnapshot for it.
template <class Visitor>
void fields_of_node(Visitor& visit, auto& node) {
  visit.field("launcher_id", node.launcher_id);
  visit.field("launcher_pid", node.launcher_pid);
  visit.field("state", node.state);
  visit.field("taken_s", node.taken_s);
  visit.field("since_s", node.since_s);
  visit.field("attempt", node.attempt);
  visit.field("first_rank", node.first_rank);
  visit.field("workers", node.workers);
  visit.field("log_dir", node.log_dir);
}

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, NodeView>& node) {
  visit.field("host", node.host);
  visit.field("node_rank", node.node_rank);
  visit.field("address", node.address);
  visit.field("port", node.port);
  visit.field("silent_s", node.silent_s);
  visit.field("age_s", node.age_s);
  fields_of_node(visit, node);
  visit.short_list("ranks", node.ranks);
}

template <class Visitor>
void fields(Visitor& visit, Visited<Visitor, JobSnapshot>& job) {
  visit.field("version", job.version);
  visit.field("run_id", job.run_id);
  visit.field("program", job.program);
  visit.field("host", job.host);
  visit.field("launcher_id", job.launcher_id);
  visit.field("launcher_pid", job.launcher_pid);
  visit.field("started_unix_s", job.started_unix_s);
  visit.field("taken_s", job.taken_s);
  visit.field("state", job.state);
  visit.field("since_s", job.since_s);
  visit.field("attempt", job.attempt);
  visit.field("attempts", job.attempts);
  visit.field("term", job.term);
  visit.field("max_restarts", job.max_restarts);
  visit.field("node_rank", job.node_rank);
  visit.field("nodes", job.nodes);
  visit.field("first_rank", job.first_rank);
  visit.field("workers", job.workers);
  visit.field("world_size", job.world_size);
  visit.field("master", job.master);
  visit.field("spares", job.spares);
  visit.field("spares_ready", job.spares_ready);
  visit.field("log_dir", job.log_dir);
  visit.slowest("slowest", job);
  visit.list("ranks", job.ranks);
  visit.list("others", job.others);
  visit.field("failures_total", job.failures_total);
  visit.list("failures", job.failures);
}

// A number that is none (a loss may be) is null in JSON.
class FieldsWriter {
 public:
  static constexpr bool writes = true;

  void field(const char* name, const auto& value) { object_[name] = value; }
  void field(const char* name, NodeState state) { object_[name] = name_of(state); }
  void field(const char* name, RankState state) { object_[name] = name_of(state); }
  void field(const char* name, char letter) { object_[name] = std::string(1, letter); }
  void field(const char* name, Slowdown slowdown) {
    put(name, slowdown != Slowdown::Unknown, [&] { return name_of(slowdown); });
  }
  void field(const char* name, const std::optional<double>& value) {
    put(name, value.has_value(), [&] { return *value; });
  }
  // One below 0 was not said.
  void said(const char* name, auto value) {
    put(name, !(value < 0), [&] { return value; });
  }
  void name_of_signal(const char* name, int signal) {
    put(name, signal != 0, [&] { return rendezvous::signal_name(signal); });
  }
  void slowest(const char* name, const JobSnapshot& job) {
    const auto slowest = slowest_of(all_ranks(job));
    put(name, slowest.has_value(), [&] {
      return SnapshotJson{{"rank", slowest->rank}, {"why", slowest->why}};
    });
  }
  template <class Part>
  void part(const char* name, const std::optional<Part>& part) {
    put(name, part.has_value(), [&] { return object_of(*part); });
  }
  template <class Part>
  void list(const char* name, const std::vector<Part>& parts) {
    SnapshotJson& list = object_[name] = SnapshotJson::array();
    for (const Part& part : parts) list.push_back(object_of(part));
  }
  void short_list(const char* name, const std::vector<RankSnapshot>& ranks) {
    SnapshotJson& list = object_[name] = SnapshotJson::array();
    for (const RankSnapshot& rank : ranks) list.push_back(short_object_of(rank));
  }

  template <class Part>
  static SnapshotJson object_of(const Part& part) {
    FieldsWriter writer;
    fields(writer, part);
    return writer.take();
  }
  // Without what is as a reader takes it anyway, for there may be thousands.
  static SnapshotJson short_object_of(const RankSnapshot& rank) {
    SnapshotJson object = object_of(rank);
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
  SnapshotJson take() { return std::move(object_); }

 private:
  template <class Value>
  void put(const char* name, bool known, Value value) {
    object_[name] = known ? SnapshotJson(value()) : SnapshotJson(nullptr);
  }

  SnapshotJson object_ = SnapshotJson::object();
};

// Of what another machine has written; no rank, path or message of ours is longer.
constexpr std::size_t peer_text_bytes_max = 1'024;
constexpr std::size_t peer_list_max = 65'536;
// Beyond these nothing is a count or a time, and sums of two must not overflow.
constexpr std::int64_t count_most = 1'000'000'000;
constexpr double number_most = 1e15;

// Reads a field where it is, and of the type that it should be of.
class FieldsReader {
 public:
  static constexpr bool writes = false;
  FieldsReader(const nlohmann::json& object, Writer writer) : object_(object), writer_(writer) {}

  void field(const char* name, std::string& value) const {
    const auto* found = find(name);
    if (!found || !found->is_string()) return;
    value = *found;
    if (writer_ == Writer::OwnHost) return;
    value = rendezvous::visible_text(
        rendezvous::clean_text(value, peer_text_bytes_max, rendezvous::Keep::Head),
        rendezvous::Lines::Escape);
  }
  void field(const char* name, int& value) const {
    std::int64_t number = value;
    field(name, number);
    value = static_cast<int>(std::clamp<std::int64_t>(number, -count_most, count_most));
  }
  void field(const char* name, std::int64_t& value) const {
    const auto* found = find(name);
    if (!found || !found->is_number_integer()) return;
    const bool fits = !found->is_number_unsigned() ||
                      found->get<std::uint64_t>() < static_cast<std::uint64_t>(INT64_MAX);
    if (fits) value = *found;
  }
  void field(const char* name, double& value) const {
    const auto* found = find(name);
    if (found && found->is_number())
      value = std::clamp(found->get<double>(), -number_most, number_most);
  }
  void field(const char* name, std::optional<double>& value) const {
    const auto* found = find(name);
    if (found && found->is_number()) field(name, value.emplace());
  }
  void field(const char* name, NodeState& state) const {
    state = state_named(node_state_names, text(name), NodeState::Waiting);
  }
  void field(const char* name, RankState& state) const {
    state = state_named(rank_state_names, text(name), RankState::Running);
  }
  void field(const char* name, Slowdown& slowdown) const { slowdown = slowdown_named(text(name)); }
  void field(const char* name, char& letter) const {
    if (const std::string word = text(name); !word.empty()) letter = word[0];
  }
  void said(const char* name, auto& value) const { field(name, value); }
  void name_of_signal(const char*, int) const {}  // Its number says the same.
  void slowest(const char*, const JobSnapshot&) const {}
  template <class Part>
  void part(const char* name, std::optional<Part>& part) const {
    const auto* found = find(name);
    if (found && found->is_object()) part = FieldsReader(*found, writer_).read<Part>();
  }
  // The elements that are objects.
  template <class Part>
  void list(const char* name, std::vector<Part>& parts) const {
    const auto* found = find(name);
    if (found == nullptr || !found->is_array()) return;
    std::size_t left = writer_ == Writer::Peer ? peer_list_max : found->size();
    for (const nlohmann::json& element : *found) {
      if (left-- == 0) return;
      if (element.is_object()) parts.push_back(FieldsReader(element, writer_).read<Part>());
    }
  }
  void short_list(const char* name, std::vector<RankSnapshot>& ranks) const { list(name, ranks); }

  template <class Part>
  Part read() const {
    Part part;
    fields(*this, part);
    return part;
  }

 private:
  const nlohmann::json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  std::string text(const char* name) const {
    std::string value;
    field(name, value);
    return value;
  }

  const nlohmann::json& object_;
  Writer writer_;
};

template <class Part>
std::optional<Part> read_snapshot(std::string_view text, Writer writer) {
  const auto object = rendezvous::json_of(text);
  if (!object.is_object() || !object.contains("launcher_pid")) return std::nullopt;
  return FieldsReader(object, writer).read<Part>();
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
  return rendezvous::json_line(FieldsWriter::object_of(snapshot));
}

std::string node_to_json(const JobSnapshot& own, std::size_t bytes_max) {
  FieldsWriter head;
  fields_of_node(head, own);
  SnapshotJson object = head.take();
  object["ranks"] = SnapshotJson::array();
  std::size_t bytes = rendezvous::json_line(object).size();
  for (const RankSnapshot& rank : own.ranks) {
    SnapshotJson each = FieldsWriter::short_object_of(rank);
    bytes += rendezvous::json_line(each).size() + 1;
    if (bytes > bytes_max) break;
    object["ranks"].push_back(std::move(each));
  }
  return rendezvous::json_line(object);
}

std::optional<NodeView> parse_node(std::string_view text) {
  return read_snapshot<NodeView>(text, Writer::Peer);
}

std::optional<JobSnapshot> parse_snapshot(std::string_view text, Writer writer) {
  return read_snapshot<JobSnapshot>(text, writer);
}

}  // namespace ddprun::launcher
