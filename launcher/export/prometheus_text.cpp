// Samples of one name stand together below its type, as the format wants it, so values are gathered
// by name first. Units are the base ones, and names end with them.
#include "launcher/export/prometheus_text.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "rendezvous/control/clean_text.h"

namespace ddprun::launcher {
namespace {

// The format is UTF-8, and names of programs and jobs may be anything.
std::string label_value(const std::string& text) {
  std::string escaped;
  for (const char c : rendezvous::clean_text(text, text.size())) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return escaped;
}

class Exposition {
 public:
  // Every sample has these: several jobs of a host may lie in one folder of files.
  explicit Exposition(const JobSnapshot& job)
      : run_id_(label_value(job.run_id)), own_host_(job.host), host_(label_value(job.host)) {}

  // Whose the samples from here on are.
  void of_host(const std::string& host) { host_ = label_value(host); }
  void of_own_host() { of_host(own_host_); }

  void begin(const char* name, const char* type, const char* help) {
    name_ = name;
    head_ = fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  template <class Number>
  void sample(Number value, const std::string& labels = "") {
    text_ += std::exchange(head_, "");  // A name without samples is left out.
    text_ += fmt::format("{}{{run_id=\"{}\",host=\"{}\"{}{}}} {}\n", name_, run_id_, host_,
                         labels.empty() ? "" : ",", labels, value);
  }
  template <class Number>
  void one(const char* name, const char* type, const char* help, Number value) {
    begin(name, type, help);
    sample(value);
  }
  std::string text() const { return text_; }

 private:
  std::string run_id_, own_host_, host_, name_, head_, text_;
};

void tell_job(Exposition& out, const JobSnapshot& job) {
  out.begin("ddprun_info", "gauge", "Always 1; its labels say what runs.");
  out.sample(1, fmt::format("program=\"{}\"", label_value(job.program)));
  out.begin("ddprun_node_state", "gauge", "1 for the state that this node is in.");
  for (const NodeState state :
       {NodeState::Waiting, NodeState::Checking, NodeState::Running, NodeState::Succeeded,
        NodeState::Stopping, NodeState::Stopped, NodeState::Done}) {
    out.sample(job.state == state ? 1 : 0, fmt::format("state=\"{}\"", name_of(state)));
  }
  out.one("ddprun_start_time_seconds", "gauge", "When the launcher was started, since 1970.",
          job.started_unix_s);
  out.one("ddprun_attempt", "gauge", "The attempt's number, from 0.", job.attempt);
  out.one("ddprun_attempts_total", "counter", "Attempts that this node has been in.", job.attempts);
  out.one("ddprun_attempt_seconds", "gauge", "Since the attempt began, or the wait for it.",
          job.since_s);
  out.one("ddprun_max_restarts", "gauge", "Failures that the job survives.", job.max_restarts);
  out.one("ddprun_failures_total", "counter", "Failures that ended an attempt, on any node.",
          job.failures_total);
  if (!job.failures.empty()) {
    out.one("ddprun_last_failure_time_seconds", "gauge", "When the last one was, since 1970.",
            job.failures.back().time_unix_s);
  }
  out.one("ddprun_nodes", "gauge", "Nodes of the attempt.", job.nodes);
  out.one("ddprun_node_rank", "gauge", "Of this node; -1: in no attempt yet.", job.node_rank);
  out.one("ddprun_world_size", "gauge", "Workers of all nodes.", job.world_size);
  out.one("ddprun_spares", "gauge", "Processes that --spares keeps.", job.spares);
  out.one("ddprun_spares_ready", "gauge", "Those that wait for a rank.", job.spares_ready);
  out.begin("ddprun_workers", "gauge", "Workers of this node by state.");
  for (const RankState state : {RankState::Running, RankState::Parked, RankState::Succeeded,
                                RankState::Failed, RankState::Stopped}) {
    int count = 0;
    for (const RankSnapshot& rank : job.ranks) count += rank.state == state ? 1 : 0;
    out.sample(count, fmt::format("state=\"{}\"", name_of(state)));
  }
}

// `value` of each rank, or nothing where a rank has none.
template <class Value>
void tell_ranks(Exposition& out, const JobSnapshot& job, const char* name, const char* type,
                const char* help, const Value& value) {
  out.begin(name, type, help);
  const auto tell = [&](const std::vector<RankSnapshot>& ranks) {
    for (const RankSnapshot& rank : ranks) {
      if (const auto number = value(rank)) {
        out.sample(*number,
                   fmt::format("rank=\"{}\",local_rank=\"{}\"", rank.rank, rank.local_rank));
      }
    }
  };
  tell(job.ranks);
  for (const NodeView& node : job.others) {
    // What was true of a node that does not answer any more would stand still in a graph.
    if (is_silent(node)) continue;
    out.of_host(node.host);
    tell(node.ranks);
  }
  out.of_own_host();
}

// Of the nodes that this one tells of, too.
void tell_nodes(Exposition& out, const JobSnapshot& job) {
  if (job.state == NodeState::Done) return;
  const auto of_nodes = [&](const char* name, const char* help, auto value) {
    out.begin(name, "gauge", help);
    for (const NodeView& node : job.others) {
      if (node.node_rank < 0) continue;  // One that stands by has no name of its own here.
      const std::optional<double> number = value(node);
      out.of_host(node.host);
      if (number) out.sample(*number, fmt::format("node_rank=\"{}\"", node.node_rank));
    }
    out.of_own_host();
  };
  of_nodes("ddprun_node_up", "1 while another node of the job answers.",
           [](const NodeView& node) { return std::optional(is_silent(node) ? 0.0 : 1.0); });
  of_nodes("ddprun_node_silent_seconds", "Since another node of the job was heard.",
           [](const NodeView& node) { return node.silent_s; });
}

// What the kernel knows, of any program.
void tell_processes(Exposition& out, const JobSnapshot& job) {
  const auto of_use = [&](const char* name, const char* type, const char* help, auto member) {
    using Number = std::remove_cvref_t<decltype(std::declval<ProcessUse>().*member)>;
    tell_ranks(out, job, name, type, help, [&](const RankSnapshot& rank) {
      return rank.use.processes > 0 ? std::optional<Number>(rank.use.*member) : std::nullopt;
    });
  };
  tell_ranks(out, job, "ddprun_rank_up", "gauge", "1 while the worker's process lives.",
             [](const RankSnapshot& rank) { return std::optional<int>(has_ended(rank) ? 0 : 1); });
  of_use("ddprun_rank_resident_bytes", "gauge", "Memory of the worker and what it has started.",
         &ProcessUse::rss_bytes);
  of_use("ddprun_rank_cpu_seconds_total", "counter", "Processor time of these.",
         &ProcessUse::cpu_s);
  of_use("ddprun_rank_processes", "gauge", "Their number.", &ProcessUse::processes);
  of_use("ddprun_rank_threads", "gauge", "Their threads.", &ProcessUse::threads);
}

template <class Number>
std::optional<Number> known(bool is_known, Number value) {
  return is_known ? std::optional(value) : std::nullopt;
}

// What NVIDIA's driver knows of the GPU that a worker uses.
void tell_gpus(Exposition& out, const JobSnapshot& job) {
  const auto of_gpu = [&](const char* name, const char* help, auto member) {
    using Number = std::remove_cvref_t<decltype(std::declval<GpuUse>().*member)>;
    tell_ranks(out, job, name, "gauge", help, [&](const RankSnapshot& rank) {
      const bool told = rank.gpu && (*rank.gpu).*member >= Number{0};
      return told ? std::optional<Number>((*rank.gpu).*member) : std::nullopt;
    });
  };
  of_gpu("ddprun_rank_gpu_index", "The worker's GPU, as nvidia-smi counts.", &GpuUse::index);
  of_gpu("ddprun_rank_gpu_busy_ratio", "Share of the last moment with a kernel at work on it.",
         &GpuUse::busy);
  of_gpu("ddprun_rank_gpu_bytes", "Memory of the GPU that the worker uses.", &GpuUse::own_bytes);
  of_gpu("ddprun_rank_gpu_used_bytes", "Memory of the GPU that anybody uses.",
         &GpuUse::memory_used);
  of_gpu("ddprun_rank_gpu_total_bytes", "Memory of the GPU.", &GpuUse::memory_total);
  const auto of_clock = [&](const char* name, const char* help, auto value) {
    tell_ranks(out, job, name, "gauge", help, [&](const RankSnapshot& rank) {
      return rank.gpu ? value(rank.gpu->clock) : std::nullopt;
    });
  };
  of_clock("ddprun_rank_gpu_temperature_celsius", "How warm the GPU is.",
           [](const GpuClock& clock) { return known(clock.celsius >= 0, clock.celsius); });
  of_clock("ddprun_rank_gpu_clock_ratio",
           "The clock of its multiprocessors, of the highest that they have.",
           [](const GpuClock& clock) {
             return known(clock.mhz >= 0 && clock.max_mhz > 0, double(clock.mhz) / clock.max_mhz);
           });
  of_clock("ddprun_rank_gpu_slowed",
           "1 while heat, the power brake or its hardware holds the GPU's clock back.",
           [](const GpuClock& clock) {
             return known(clock.slowdown != Slowdown::Unknown, int{is_slowed(clock)});
           });
}

// What workers say of themselves, as `train` and users of the worker library do.
void tell_progress(Exposition& out, const JobSnapshot& job) {
  const auto of_progress = [&](const char* name, const char* type, const char* help, auto member) {
    using Number = std::remove_cvref_t<decltype(std::declval<RankProgress>().*member)>;
    tell_ranks(out, job, name, type, help, [&](const RankSnapshot& rank) {
      const bool said = rank.progress && (*rank.progress).*member >= Number{0};
      return said ? std::optional<Number>((*rank.progress).*member) : std::nullopt;
    });
  };
  // Of a worker that has ended the last word stays true, but nothing of it goes at any pace.
  const auto of_pace = [&](const char* name, const char* help, double RankProgress::*member) {
    tell_ranks(out, job, name, "gauge", help, [&](const RankSnapshot& rank) {
      const bool said = rank.progress && !has_ended(rank) && (*rank.progress).*member >= 0;
      return said ? std::optional((*rank.progress).*member) : std::nullopt;
    });
  };
  of_progress("ddprun_rank_step", "gauge", "Steps of the job that are done.", &RankProgress::step);
  of_progress("ddprun_rank_steps_wanted", "gauge", "Steps of the whole job.",
              &RankProgress::total_steps);
  of_progress("ddprun_rank_epoch", "gauge", "The epoch, from 1.", &RankProgress::epoch);
  tell_ranks(
      out, job, "ddprun_rank_loss", "gauge", "The last loss that the worker looked at.",
      [](const RankSnapshot& rank) { return rank.progress ? rank.progress->loss : std::nullopt; });
  of_progress("ddprun_rank_images_total", "counter", "Images that this process has trained on.",
              &RankProgress::images);
  of_pace("ddprun_rank_images_per_second", "Of this rank, over its last steps.",
          &RankProgress::images_per_s);
  of_pace("ddprun_rank_step_seconds", "A step, over the last ones.", &RankProgress::step_s);
  of_pace("ddprun_rank_data_seconds", "Of it, waiting for data.", &RankProgress::data_s);
  of_pace("ddprun_rank_wait_seconds", "Of it, waiting for other ranks.", &RankProgress::wait_s);
  of_progress("ddprun_rank_data_seconds_total", "counter",
              "Waiting for data since the process's start.", &RankProgress::data_total_s);
  of_progress("ddprun_rank_wait_seconds_total", "counter",
              "Waiting for other ranks since the process's start.", &RankProgress::wait_total_s);
  tell_ranks(out, job, "ddprun_rank_silent_seconds", "gauge",
             "Since the worker said anything of itself.", [](const RankSnapshot& rank) {
               return rank.progress && !has_ended(rank) ? rank.progress->age_s : std::nullopt;
             });
}

// What is written when this node is done stays, and nobody looks at the others any more.
JobSnapshot without_life_of_others(JobSnapshot job) {
  for (NodeView& node : job.others) {
    for (RankSnapshot& rank : node.ranks) {
      if (!has_ended(rank)) rank.state = RankState::Stopped;
      rank.use = {};
      rank.gpu.reset();
    }
  }
  return job;
}

std::string text_of(const JobSnapshot& job) {
  Exposition out(job);
  tell_job(out, job);
  tell_nodes(out, job);
  tell_processes(out, job);
  tell_gpus(out, job);
  tell_progress(out, job);
  return out.text();
}

}  // namespace

std::string prometheus_text(const JobSnapshot& job) {
  return text_of(job.state == NodeState::Done ? without_life_of_others(job) : job);
}

}  // namespace ddprun::launcher
