// What launchers of other machines tell of their job: any bytes give values that can be shown,
// compared and told on, or nothing.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/stall/node_paces.h"
#include "launcher/status/job_snapshot.h"
#include "launcher/status/node_lines.h"
#include "launcher/watch/status_text.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

namespace {

constexpr std::size_t told_bytes_max = 4'096;
constexpr int world_size = 8;

// A terminal takes nothing of it for an order.
void require_visible(std::string_view text, const std::string& what) {
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    require(code >= 0x20 && code != 0x7f, "a control character in " + what);
  }
}

void show(const JobSnapshot& job) {
  require_visible(headline(job), "a headline");
  for (const std::string& text :
       {status_text({job, {}}, 80, 0), status_text({job, job}, 80, 0), list_text({job, job}, 80)}) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      require_visible(std::string_view(text).substr(begin, end - begin), "what is shown of a job");
      begin = end + 1;
    }
  }
}

void snapshot(std::string_view text) {
  const auto job = parse_snapshot(text, Writer::Peer);
  if (!job) return;
  show(*job);
  const std::string told = to_json(*job);
  const auto again = parse_snapshot(told, Writer::Peer);
  require(again && to_json(*again) == told, "a snapshot does not come back as it was");
  require(node_to_json(*job, told_bytes_max).size() <= told_bytes_max, "a node tells too much");
}

void node(std::string_view text) {
  const auto told = parse_node(text);
  if (!told) return;
  JobSnapshot job;
  job.ranks.push_back({.rank = 1, .progress = RankProgress{.step = 3}});
  job.others = {*told, *told};
  slowest_of(all_ranks(job));
  show(job);
  snapshot(to_json(job));
}

void lines(std::string_view text) {
  if (const auto told = parse_lines(text)) {
    for (const std::string& line : *told) require_visible(line, "a line");
    require(lines_to_json(*told, told_bytes_max).size() <= told_bytes_max, "lines are too many");
  }
  if (const auto nodes = parse_nodes(text)) {
    for (const std::string& line : nodes_text(*nodes)) require_visible(line, "a node's line");
    const auto again = parse_nodes(nodes_to_json(*nodes, 16 * told_bytes_max));
    require(again && again->size() == nodes->size(), "not all nodes come back");
  }
}

void paces(std::string_view text) {
  const auto told = parse_paces(text, 1, "host", world_size);
  if (!told) return;
  for (const RankPace& rank : told->ranks) {
    require(rank.rank >= 0 && rank.rank < world_size, "a rank that the job does not have");
    require(rank.own_s >= 0 && rank.step_s > 0, "a step that takes no time");
  }
  const std::string line = paces_to_json(*told);
  const auto again = parse_paces(line, 1, "host", world_size);
  require(again && paces_to_json(*again) == line, "paces do not come back as they were");
  StragglerWatch().look(paces_of({*told, *told}), {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  snapshot(text);
  node(text);
  lines(text);
  paces(text);
  return 0;
}
