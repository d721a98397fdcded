// Ages are counted here, from the moment at which somebody was asked: clocks of two machines are
// never compared, and what was told is never older than that. From the moment at which the answers
// are there it might be: the first one may have waited for the last.
#include "launcher/job_view.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_pause{500};
// `ddprun top` waits a second for its launcher, and that one for the coordinator.
constexpr milliseconds nodes_limit{500};
constexpr milliseconds coordinator_limit{800};
// py-spy may take its time over the ranks of a node, and the coordinator waits for all nodes.
constexpr milliseconds lines_of_nodes_limit{15'000};
constexpr milliseconds lines_of_job_limit{18'000};

double seconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::chrono::steady_clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
}

std::string why_untold(const rendezvous::QueryAnswer& answer) {
  if (answer.refused) return answer.refused->reason;
  if (answer.moved) return "another node coordinates the job";
  return "the coordinator does not answer: " + answer.why;
}

std::vector<NodeLines> lines_of(const rendezvous::QueryAnswer& answer) {
  if (auto nodes = answer.text ? parse_nodes(*answer.text) : std::nullopt) return *nodes;
  NodeLines others;
  others.host = "other hosts";
  others.why = why_untold(answer);
  return {others};
}

// A question to all nodes, while the others or this one have not answered.
struct LinesAsked {
  std::optional<NodeLines> own;
  std::optional<std::vector<NodeLines>> others;
  std::function<void(const std::vector<NodeLines>&)> done;

  // This node is among the others where they are known: there it has no lines, or those that the
  // coordinator has had from it.
  void tell() {
    if (!own || !others) return;
    const auto place = std::find_if(others->begin(), others->end(), [&](const NodeLines& node) {
      return node.host == own->host && node.node_rank == own->node_rank;
    });
    if (place == others->end()) {
      others->insert(others->begin(), std::move(*own));
    } else {
      *place = std::move(*own);
    }
    done(*others);
  }
};

}  // namespace

std::vector<NodeLines> lines_of(const std::vector<rendezvous::NodeTold>& nodes) {
  std::vector<NodeLines> all;
  for (const rendezvous::NodeTold& node : nodes) {
    NodeLines& each = all.emplace_back();
    each.host = node.host;
    each.node_rank = node.group_rank;
    if (node.is_own) continue;
    const auto lines = node.text ? parse_lines(*node.text) : std::nullopt;
    if (lines) each.lines = *lines;
    if (!node.tells) each.why = "its ddprun is too old to tell";
    if (node.tells && !lines) each.why = "it does not answer";
  }
  return all;
}

JobView::JobView(bool alone, LauncherIdentity own, JobViewWays ways)
    : alone_(alone), own_(std::move(own)), ways_(std::move(ways)) {}

void JobView::refresh(std::function<void()> done) {
  if (alone_) return done();
  if (waiting_.empty() && Clock::now() - looked_at_ < look_pause) return done();
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  rendezvous::Query query;
  query.what = "snapshot";
  const auto asked_at = Clock::now();
  if (ways_.leads()) {
    ways_.ask_nodes(query, nodes_limit,
                    [this, asked_at](const std::vector<rendezvous::NodeTold>& nodes) {
                      take(nodes, asked_at);
                      looked();
                    });
  } else {
    ways_.ask_coordinator(query, coordinator_limit,
                          [this, asked_at](const rendezvous::QueryAnswer& answer) {
                            take(answer, asked_at);
                            looked();
                          });
  }
}

void JobView::looked() {
  looked_at_ = Clock::now();
  for (const auto& done : std::exchange(waiting_, {})) done();
}

// Who has not answered now is as it was seen last: that is what its age is shown for.
void JobView::keep_or_replace(std::vector<Seen> seen) {
  for (Seen& each : seen) {
    if (each.view.age_s) continue;
    for (Seen& earlier : seen_) {
      const bool same = earlier.view.age_s && earlier.view.host == each.view.host &&
                        earlier.view.node_rank == each.view.node_rank;
      if (!same) continue;
      const auto heard_at = each.heard_at;
      each = std::move(earlier);
      each.heard_at = heard_at;
      break;
    }
  }
  seen_ = std::move(seen);
}

void JobView::take(const std::vector<rendezvous::NodeTold>& nodes, Clock::time_point asked_at) {
  const auto now = Clock::now();
  std::vector<Seen> seen;
  for (const rendezvous::NodeTold& node : nodes) {
    if (node.is_own) continue;
    Seen& each = seen.emplace_back();
    if (node.text) {
      if (auto told = parse_node(*node.text)) {
        each.view = std::move(*told);
        each.view.age_s = 0;
      }
    }
    each.view.host = node.host;
    each.view.node_rank = node.group_rank;
    each.view.address = node.address;
    each.view.port = node.port;
    each.view.silent_s = 0;
    each.heard_at = now - node.silence;
    each.told_at = asked_at;
  }
  problem_.clear();
  keep_or_replace(std::move(seen));
}

void JobView::take(const rendezvous::QueryAnswer& answer, Clock::time_point asked_at) {
  const auto job = answer.text ? parse_snapshot(*answer.text, Writer::Peer) : std::nullopt;
  if (!job) {
    problem_ = why_untold(answer);
    return;
  }
  const auto now = Clock::now();
  std::vector<NodeView> views = job->others;
  views.push_back({.host = job->host,
                   .node_rank = job->node_rank,
                   .silent_s = 0,
                   .age_s = 0,
                   .launcher_id = job->launcher_id,
                   .launcher_pid = job->launcher_pid,
                   .state = job->state,
                   .taken_s = job->taken_s,
                   .since_s = job->since_s,
                   .attempt = job->attempt,
                   .first_rank = job->first_rank,
                   .workers = job->workers,
                   .log_dir = job->log_dir,
                   .ranks = job->ranks});
  std::vector<Seen> seen;
  for (NodeView& view : views) {
    if (is_same_launcher(view, own_)) continue;
    const auto told_at = asked_at - duration_of(view.age_s.value_or(0));
    const auto heard_at = now - duration_of(view.silent_s.value_or(0));
    seen.push_back({std::move(view), heard_at, told_at});
  }
  std::stable_sort(seen.begin(), seen.end(), [](const Seen& a, const Seen& b) {
    return static_cast<unsigned>(a.view.node_rank) < static_cast<unsigned>(b.view.node_rank);
  });
  problem_.clear();
  keep_or_replace(std::move(seen));
}

std::vector<NodeView> JobView::others() const {
  const auto now = Clock::now();
  std::vector<NodeView> views;
  for (const Seen& each : seen_) {
    NodeView& view = views.emplace_back(each.view);
    if (view.age_s) view.age_s = seconds_of(now - each.told_at);
    view.silent_s = seconds_of(now - each.heard_at);
  }
  return views;
}

std::function<void(NodeLines own)> JobView::lines(
    const rendezvous::Query& query, std::function<void(const std::vector<NodeLines>&)> done) {
  auto asked = std::make_shared<LinesAsked>();
  asked->done = std::move(done);
  if (alone_) {
    asked->others.emplace();
  } else if (ways_.leads()) {
    ways_.ask_nodes(query, lines_of_nodes_limit,
                    [asked](const std::vector<rendezvous::NodeTold>& nodes) {
                      asked->others = lines_of(nodes);
                      asked->tell();
                    });
  } else {
    ways_.ask_coordinator(query, lines_of_job_limit,
                          [asked](const rendezvous::QueryAnswer& answer) {
                            asked->others = lines_of(answer);
                            asked->tell();
                          });
  }
  return [asked](NodeLines own) {
    asked->own = std::move(own);
    asked->tell();
  };
}

void JobView::job_stacks(std::function<void(const JobStackLines&)> done) const {
  ways_.ask_coordinator(
      {.what = "equal stacks"}, lines_of_job_limit,
      [done = std::move(done)](const rendezvous::QueryAnswer& answer) {
        if (!answer.text) return done({{}, why_untold(answer)});
        const auto lines = parse_lines(*answer.text);
        if (!lines) return done({{}, "the ddprun that coordinates the job is too old to tell"});
        done({*lines, ""});
      });
}

void JobView::stacks_of_others(
    std::function<void(const std::vector<rendezvous::NodeTold>& nodes)> done) const {
  ways_.ask_nodes({.what = "stacks"}, lines_of_nodes_limit, std::move(done));
}

void JobView::paces(int world_size, milliseconds limit,
                    std::function<void(std::vector<NodePaces> others)> done) const {
  ways_.ask_nodes(
      {.what = "paces"}, limit,
      [world_size, done = std::move(done)](const std::vector<rendezvous::NodeTold>& nodes) {
        std::vector<NodePaces> others;
        for (const rendezvous::NodeTold& node : nodes) {
          if (node.is_own || !node.text) continue;
          auto told = parse_paces(*node.text, node.group_rank, node.host, world_size);
          if (told) others.push_back(std::move(*told));
        }
        done(std::move(others));
      });
}

}  // namespace ddprun::launcher
