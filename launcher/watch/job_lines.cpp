// Where nobody can tell of the others, this host's ranks are shown as ever.
#include "launcher/watch/job_lines.h"

#include "launcher/watch/job_stacks.h"
#include "launcher/watch/node_lines.h"

namespace ddprun::launcher {
namespace {

rendezvous::Query query_for(const char* what, std::optional<int> rank, int lines = 0) {
  rendezvous::Query query;
  query.what = what;
  query.rank = rank.value_or(-1);
  query.lines = lines;
  return query;
}

std::optional<std::vector<NodeLines>> ask_for_lines(FoundLooks& found, const FoundJob& job,
                                                    const rendezvous::Query& query) {
  const auto answer = found.ask_all_nodes(job, query);
  return answer ? parse_nodes(*answer) : std::nullopt;
}

}  // namespace

std::vector<std::string> job_stack_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank) {
  const bool alone = !found.is_remote() && job.snapshot && job.snapshot->others.empty();
  if (!alone) {
    const auto nodes = ask_for_lines(found, job, query_for("stacks", rank));
    if (nodes) return nodes_text(*nodes);
  }
  return found.is_remote() ? std::vector<std::string>{} : stack_lines(job, rank);
}

std::vector<std::string> other_log_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank, int lines) {
  auto nodes = ask_for_lines(found, job, query_for("logs", rank, lines));
  if (!nodes) return {};
  // This host's files are read whole.
  if (!found.is_remote()) {
    std::erase_if(*nodes, [&](const NodeLines& node) {
      return node.host == job.snapshot->host && node.node_rank == job.snapshot->node_rank;
    });
  }
  return nodes_text(*nodes);
}

}  // namespace ddprun::launcher
