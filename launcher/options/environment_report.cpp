// A table to read and to paste into a ticket: it names variables of the job's shape alone, none
// that may hold a secret.
#include "launcher/options/environment_report.h"

#include <fmt/format.h>

#include "launcher/options/endpoint_options.h"

namespace ddprun::launcher {
namespace {

class EnvironmentReport {
 public:
  EnvironmentReport(const Platform& platform, const LaunchOptions& options)
      : platform_(platform), options_(options) {}

  std::string text(const std::string& refusal);

 private:
  void row(const std::string& what, const std::string& value, const std::string& source) {
    std::string line = fmt::format("{:<10} {:<24} {}", what, value, source);
    line.resize(line.find_last_not_of(' ') + 1);
    text_ += line + "\n";
  }
  void add_chosen();
  void add_said();
  void add_rejected();

  const Platform& platform_;
  const LaunchOptions& options_;
  std::string text_;
};

void EnvironmentReport::add_chosen() {
  const bool elastic = options_.nnodes_min != options_.nnodes_max;
  const bool one_node = options_.nnodes_max == 1;
  row("nodes",
      elastic ? fmt::format("{} to {}", options_.nnodes_min, options_.nnodes_max)
              : std::to_string(options_.nnodes_max),
      options_.source_of("nnodes"));
  if (!options_.over_ssh.hosts.empty()) {
    text_ += "           ddprun starts all of them over ssh, and reads no platform\n";
    return;
  }
  const bool joins = options_.backend == RendezvousBackend::C10d && !options_.node_rank_given;
  row("node rank", joins && !one_node ? "as they join" : std::to_string(options_.node_rank),
      options_.source_of("node-rank"));
  const bool etcd = meets_in_etcd(options_);
  row(etcd ? "etcd" : "address", options_.endpoint_host, options_.endpoint_sources.address);
  row("port", options_.endpoint_port == 0 ? "a free one" : std::to_string(options_.endpoint_port),
      options_.endpoint_sources.port);
  row("job id", options_.run_id, options_.endpoint_sources.run_id);
  row("workers", std::to_string(options_.nproc_per_node), options_.source_of("nproc-per-node"));
}

// Where nothing can be started: the platform's words alone.
void EnvironmentReport::add_said() {
  constexpr std::pair<const char*, const char*> rows[] = {{"nodes", "nnodes"},
                                                          {"node rank", "node-rank"},
                                                          {"address", "master-addr"},
                                                          {"port", "master-port"},
                                                          {"job id", "rdzv-id"}};
  for (const auto& [what, option] : rows) {
    const auto said = platform_.says.find(option);
    if (said != platform_.says.end()) row(what, said->second.value, said->second.source);
  }
}

void EnvironmentReport::add_rejected() {
  std::string lines;
  if (options_.over_ssh.hosts.empty()) {
    for (const auto& [option, said] : platform_.says) {
      const auto found = options_.sources.find(option);
      if (options_.standalone || found == options_.sources.end()) continue;
      if (found->second == said.source) continue;
      lines += fmt::format("  {}: {} wins\n", said.source, found->second);
    }
    if (options_.standalone && platform_.is_here()) {
      lines += fmt::format("  {}: --standalone wins\n", platform_.shown);
    }
  }
  for (const std::string& rejected : platform_.rejected) lines += "  " + rejected + "\n";
  if (!lines.empty()) text_ += "not used\n" + lines;
}

std::string EnvironmentReport::text(const std::string& refusal) {
  row("platform", platform_.is_here() ? platform_.name : "none", platform_.shown);
  if (refusal.empty()) {
    add_chosen();
  } else {
    add_said();
  }
  add_rejected();
  for (const std::string& note : options_.notes) text_ += "note: " + note + "\n";
  if (!refusal.empty()) text_ += "no job can be started: " + refusal + "\n";
  return text_;
}

}  // namespace

std::string describe_environment(const Platform& platform, const LaunchOptions& options,
                                 const std::string& refusal) {
  return EnvironmentReport(platform, options).text(refusal);
}

}  // namespace ddprun::launcher
