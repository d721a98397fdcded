// Pictures are drawn here and not in the browser: they are those of a report, with the same tests.
#include "launcher/export/status_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plot/axis.h"
#include "plot/report_page.h"
#include "plot/svg_text.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t rank_rows_max = 128;

// When the launcher is gone the last content stays, and says so.
constexpr const char* page_script = R"(<script>
const content = document.getElementById('content'), word = document.getElementById('word');
async function look() {
  try {
    const answer = await fetch('content', {cache: 'no-store'});
    if (!answer.ok) throw answer.status;
    content.innerHTML = await answer.text();
    word.textContent = '';
  } catch (error) {
    word.textContent = 'no answer since ' + (word.dataset.since ||= new Date().toLocaleTimeString()) +
        ': the job has ended, or the way to it is cut';
    setTimeout(look, 2000);
    return;
  }
  delete word.dataset.since;
  setTimeout(look, 2000);
}
look();
</script>)";

std::string cells(const std::vector<std::string>& texts) {
  std::string row = "<tr>";
  for (const std::string& text : texts) row += "<td>" + plot::escaped_markup(text) + "</td>";
  return row + "</tr>\n";
}

std::string state_of(const RankSnapshot& rank) {
  if (rank.state != RankState::Failed) return name_of(rank.state);
  return rank.signal != 0 ? fmt::format("failed, signal {}", rank.signal)
                          : fmt::format("failed, exit code {}", rank.exit_code);
}

std::string milliseconds_text(double seconds) {
  return seconds > 0 ? fmt::format("{:.4g} ms", seconds * 1e3) : "";
}

std::string gpu_text(const GpuUse& gpu) {
  std::string text = std::to_string(gpu.index);
  if (gpu.busy >= 0) text += fmt::format(": {:.0f} %", 100 * gpu.busy);
  if (shown_bytes(gpu) >= 0) text += fmt::format(", {} MB", shown_bytes(gpu) >> 20);
  if (is_slowed(gpu.clock)) text += ", slowed down " + slowdown_text(gpu.clock);
  return text;
}

std::string rank_row(const RankSnapshot& rank, const std::string& host) {
  const RankProgress said = rank.progress.value_or(RankProgress{});
  std::string step = said.step < 0 ? "" : std::to_string(said.step);
  if (said.total_steps > 0 && !step.empty()) step += fmt::format(" of {}", said.total_steps);
  const bool lives = rank.use.processes > 0;
  return cells(
      {std::to_string(rank.rank), host, std::to_string(rank.pid), state_of(rank), step, said.phase,
       said.images_per_s > 0 ? plot::tick_text(said.images_per_s) : "",
       milliseconds_text(said.step_s), milliseconds_text(said.data_s),
       milliseconds_text(said.wait_s), lives ? fmt::format("{} MB", rank.use.rss_bytes >> 20) : "",
       lives ? fmt::format("{:.1f} s", rank.use.cpu_s) : "", rank.gpu ? gpu_text(*rank.gpu) : ""});
}

std::string host_of_view(const NodeView& node) {
  if (!is_silent(node)) return node.host;
  return fmt::format("{}, silent for {:.0f} s", node.host,
                     std::max(node.silent_s.value_or(0), node.age_s.value_or(0)));
}

// Nodes that have told of no rank are named, too.
std::string silent_nodes(const JobSnapshot& job) {
  std::string text;
  for (const NodeView& node : job.others) {
    if (!node.ranks.empty()) continue;
    text += fmt::format("<p class=\"note\">node on {}: nothing is known of its ranks</p>\n",
                        plot::escaped_markup(host_of_view(node)));
  }
  return text;
}

std::string rank_table(const JobSnapshot& job) {
  std::vector<std::pair<const RankSnapshot*, std::string>> rows;
  for (const RankSnapshot& rank : job.ranks) rows.emplace_back(&rank, job.host);
  for (const NodeView& node : job.others) {
    for (const RankSnapshot& rank : node.ranks) rows.emplace_back(&rank, host_of_view(node));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first->rank < b.first->rank; });
  if (rows.empty()) return "";
  std::string text =
      "<div "
      "class=\"wide\"><table><tr><th>rank<th>host<th>pid<th>state<th>step<th>phase<th>images/"
      "s<th>step "
      "time<th>data<th>waiting<th>memory<th>CPU<th>GPU</tr>\n";
  for (std::size_t i = 0; i < std::min(rows.size(), rank_rows_max); ++i) {
    text += rank_row(*rows[i].first, rows[i].second);
  }
  text += "</table></div>\n";
  if (rows.size() > rank_rows_max) {
    text += fmt::format("<p class=\"note\">and {} more ranks</p>\n", rows.size() - rank_rows_max);
  }
  text += silent_nodes(job);
  if (const auto slowest = slowest_of(all_ranks(job))) {
    text += fmt::format("<p>slowest: rank {}, {}</p>\n", slowest->rank,
                        plot::escaped_markup(slowest->why));
  }
  return text;
}

std::string head_line(const JobSnapshot& job) {
  std::string text = fmt::format("{} on {}: {}, attempt {}", job.program, job.host,
                                 name_of(job.state), job.attempt);
  if (job.node_rank >= 0) {
    text += fmt::format(
        ", node {} of {}, ranks {} to {} of {}", job.node_rank, job.nodes, job.first_rank,
        job.first_rank + std::max<std::size_t>(job.ranks.size(), 1) - 1, job.world_size);
  }
  text += fmt::format(", {} failure{}", job.failures_total, job.failures_total == 1 ? "" : "s");
  return text;
}

}  // namespace

std::string status_page(const JobSnapshot& job) {
  const std::string policy =
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'\">";
  const std::string title = "ddprun " + job.run_id;
  return plot::page_head(title, policy) + "<h1>" + plot::escaped_markup(title) +
         "</h1>\n<p id=\"word\" class=\"note\"></p>\n<div id=\"content\"></div>\n" + page_script +
         "</body></html>\n";
}

std::string status_content(const JobSnapshot& job, const plot::RunRecords& history) {
  return "<p id=\"state\">" + plot::escaped_markup(head_line(job)) + "</p>\n" + rank_table(job) +
         "<main>\n" + plot::run_charts({history}) + "</main>\n";
}

}  // namespace ddprun::launcher
