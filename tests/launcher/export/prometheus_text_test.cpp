// The names that are exported, those that docs/metrics.md has, and those that the dashboard asks
// for.
#include "launcher/export/prometheus_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launcher/export/trainer_status.h"
#include "tests/launcher/status/full_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;

namespace {

bool in_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

// Every word of a text that begins with "ddprun_".
std::set<std::string> names_in(const std::string& text) {
  std::set<std::string> names;
  for (std::size_t at = text.find("ddprun_"); at != text.npos; at = text.find("ddprun_", at)) {
    std::size_t end = at;
    while (end < text.size() && in_name(text[end])) ++end;
    names.insert(text.substr(at, end - at));
    at = end;
  }
  return names;
}

// Name -> type, as the text declares them.
std::map<std::string, std::string> declared(const std::string& text) {
  std::map<std::string, std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, what, name, type;
    if (words >> hash >> what >> name >> type; hash == "#" && what == "TYPE") types[name] = type;
  }
  return types;
}

}  // namespace

TEST_CASE("names that are no UTF-8 leave the metrics readable", "[launcher][export]") {
  JobSnapshot job = full_job();
  job.run_id = "tr\xe4n";
  CHECK(contains(prometheus_text(job), "{run_id=\"tr?n\","));
}

TEST_CASE("17.2: a job's metrics are what its snapshot says", "[launcher][export]") {
  const std::string text = prometheus_text(full_job());

  const std::string of_job = "{run_id=\"night \\\"7\\\"\",host=\"node1\"";
  CHECK(contains(text, "\nddprun_attempt" + of_job + "} 2\n"));
  CHECK(contains(text, "\nddprun_failures_total" + of_job + "} 4\n"));
  CHECK(contains(text, "\nddprun_node_state" + of_job + ",state=\"running\"} 1\n"));
  CHECK(contains(text, "\nddprun_node_state" + of_job + ",state=\"waiting\"} 0\n"));
  CHECK(contains(text, "\nddprun_node_state" + of_job + ",state=\"checking\"} 0\n"));
  CHECK(contains(text, "\nddprun_workers" + of_job + ",state=\"failed\"} 1\n"));
  const std::string of_rank = of_job + ",rank=\"8\",local_rank=\"0\"} ";
  CHECK(contains(text, "\nddprun_rank_loss" + of_rank + "0.25\n"));
  CHECK(contains(text, "\nddprun_rank_step" + of_rank + "41\n"));
  CHECK(contains(text, "\nddprun_rank_images_per_second" + of_rank + "512.5\n"));
  CHECK(contains(text, "\nddprun_rank_resident_bytes" + of_rank + "1073741824\n"));
  CHECK(contains(text, "\nddprun_rank_gpu_index" + of_rank + "3\n"));
  CHECK(contains(text, "\nddprun_rank_gpu_busy_ratio" + of_rank + "0.97\n"));
  CHECK(contains(text, "\nddprun_rank_gpu_bytes" + of_rank + "6442450944\n"));
  // Rank 9 is gone and has said nothing: it has no numbers of its own, and not zeros.
  CHECK(contains(text, "ddprun_rank_up" + of_job + ",rank=\"9\",local_rank=\"1\"} 0\n"));
  CHECK(count_of(text, "rank=\"9\"") == 1);
}

TEST_CASE("17.2: ranks of other nodes have the host that they are on", "[launcher][export]") {
  JobSnapshot job = full_job();
  const std::string of_other = "{run_id=\"night \\\"7\\\"\",host=\"node0\"";
  std::string text = prometheus_text(job);
  CHECK(contains(text, "\nddprun_rank_up" + of_other + ",rank=\"7\",local_rank=\"0\"} 1\n"));
  CHECK(contains(text, "\nddprun_node_up" + of_other + ",node_rank=\"0\"} 1\n"));
  CHECK(contains(text, "\nddprun_node_silent_seconds" + of_other + ",node_rank=\"0\"} 0.25\n"));
  CHECK(contains(text, "\nddprun_rank_loss{run_id=\"night \\\"7\\\"\",host=\"node1\""));

  // What was true of a silent node would stand still in a graph.
  job.others[0].silent_s = 40;
  text = prometheus_text(job);
  CHECK_FALSE(contains(text, "rank=\"7\""));
  CHECK(contains(text, "\nddprun_node_up" + of_other + ",node_rank=\"0\"} 0\n"));
  CHECK(contains(text, "\nddprun_node_silent_seconds" + of_other + ",node_rank=\"0\"} 40\n"));
}

TEST_CASE("what stays of a job that is done says of no node that it runs", "[launcher][export]") {
  JobSnapshot job = full_job();
  job.others[0].ranks[0].progress = RankProgress{.step = 41, .images_per_s = 59.5};
  job.others[0].ranks[0].use = {.processes = 1};
  const std::string of_other = "{run_id=\"night \\\"7\\\"\",host=\"node0\"";
  const std::string of_rank = of_other + ",rank=\"7\",local_rank=\"0\"}";
  CHECK(contains(prometheus_text(job), "\nddprun_rank_images_per_second" + of_rank + " 59.5\n"));

  job.state = NodeState::Done;
  const std::string text = prometheus_text(job);
  CHECK(contains(text, "\nddprun_rank_up" + of_rank + " 0\n"));
  CHECK(contains(text, "\nddprun_rank_step" + of_rank + " 41\n"));
  for (const char* name : {"rank_images_per_second", "rank_silent_seconds", "rank_processes"}) {
    CHECK_FALSE(contains(text, "\nddprun_" + std::string(name) + of_rank));
  }
  CHECK_FALSE(contains(text, "ddprun_node_up"));
  CHECK_FALSE(contains(text, "ddprun_node_silent_seconds"));
}

TEST_CASE("nodes that stand by on one host give no sample twice", "[launcher][export]") {
  JobSnapshot job = full_job();
  for (const int pid : {100, 101}) {
    job.others.push_back({.host = "node2", .node_rank = -1, .age_s = 0.5, .launcher_pid = pid});
  }
  std::set<std::string> seen;
  std::istringstream lines(prometheus_text(job));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    CHECK(seen.insert(line.substr(0, line.rfind(' '))).second);
  }
}

TEST_CASE("17.2: each name has one type, one help and its samples below them",
          "[launcher][export]") {
  const std::string text = prometheus_text(full_job());
  const auto types = declared(text);
  std::istringstream lines(text);
  std::string name;
  std::set<std::string> begun;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    if (line.starts_with("# HELP ")) {
      name = line.substr(7, line.find(' ', 7) - 7);
      CHECK(begun.insert(name).second);
    } else if (!line.starts_with("# TYPE ")) {
      CHECK(line.starts_with(name + "{"));
      CHECK(line.find("} ") != line.npos);
    }
  }
  REQUIRE(types.size() > 30);
  for (const auto& [metric, type] : types) {
    INFO(metric);
    CHECK((type == "counter") == metric.ends_with("_total"));
  }
}

TEST_CASE("17.2: the table of docs/metrics.md has every name and no other", "[launcher][export]") {
  const auto types = declared(prometheus_text(full_job()));
  std::map<std::string, std::string> documented;
  std::istringstream lines(content_of(DDPRUN_SOURCE_DIR "/docs/metrics.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `ddprun_")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    const std::size_t type = line.find("| ", 3) + 2;
    documented[name] = line.substr(type, line.find(' ', type) - type);
  }
  CHECK(documented == types);
}

TEST_CASE("17.2: the dashboard asks for names and labels that are exported", "[launcher][export]") {
  const std::string text = prometheus_text(full_job());
  const auto types = declared(text);
  const auto dashboard =
      nlohmann::json::parse(content_of(DDPRUN_SOURCE_DIR "/examples/grafana/ddprun.json"));
  std::set<std::string> asked;
  int queries = 0;
  for (const auto& panel : dashboard.at("panels")) {
    for (const auto& target : panel.at("targets")) {
      const std::string query = target.at("expr");
      INFO(query);
      ++queries;
      CHECK(count_of(query, "(") == count_of(query, ")"));
      CHECK(count_of(query, "{") == count_of(query, "}"));
      // Of one job: the variable at the top of the dashboard.
      CHECK(contains(query, "run_id=~\"$run_id\""));
      for (const std::string& name : names_in(query)) {
        CHECK(types.count(name) == 1);
        asked.insert(name);
        const bool rate = contains(query, "rate(" + name) || contains(query, "increase(" + name);
        if (rate) CHECK(types.at(name) == "counter");
      }
      for (const char* label : {"rank", "host", "state", "program", "local_rank", "node_rank"}) {
        if (contains(query, std::string(label) + "=")) {
          CHECK(contains(text, std::string(label) + "=\""));
        }
      }
    }
  }
  CHECK(queries > 8);
  for (const char* name : {"ddprun_rank_loss", "ddprun_rank_images_per_second",
                           "ddprun_failures_total", "ddprun_rank_wait_seconds"}) {
    CHECK(asked.count(name) == 1);
  }
  for (const auto& variable : dashboard.at("templating").at("list")) {
    for (const std::string& name : names_in(variable.value("query", ""))) {
      CHECK(types.count(name) == 1);
    }
  }
}

TEST_CASE("of a worker that has ended its last word is exported, and no pace",
          "[launcher][export]") {
  JobSnapshot job = full_job();
  job.ranks[0].state = RankState::Stopped;
  const std::string text = prometheus_text(job);

  const std::string of_rank =
      "{run_id=\"night \\\"7\\\"\",host=\"node1\",rank=\"8\",local_rank=\"0\"}";
  CHECK(contains(text, "\nddprun_rank_up" + of_rank + " 0\n"));
  CHECK(contains(text, "\nddprun_rank_step" + of_rank + " 41\n"));
  CHECK(contains(text, "\nddprun_rank_epoch" + of_rank + " 2\n"));
  CHECK(contains(text, "\nddprun_rank_loss" + of_rank + " 0.25\n"));
  CHECK(contains(text, "\nddprun_rank_images_total" + of_rank + " 4100\n"));
  for (const char* name :
       {"images_per_second", "step_seconds", "data_seconds", "wait_seconds", "silent_seconds"}) {
    INFO(name);
    CHECK_FALSE(contains(text, "\nddprun_rank_" + std::string(name) + "{"));
  }
}

TEST_CASE("17.2: Kubeflow Trainer is told percent, time and metrics as its API has them",
          "[launcher][export]") {
  const JobSnapshot job = full_job();
  const auto status =
      nlohmann::json::parse(trainer_status(job, 1'700'000'000, std::nullopt)).at("trainerStatus");
  CHECK(status.at("progressPercentage") == 4);           // 41 of 900
  CHECK(status.at("estimatedRemainingSeconds") == 107);  // 859 steps of 0.125 s
  CHECK(status.at("lastUpdatedTime") == "2023-11-14T22:13:20Z");
  std::map<std::string, std::string> metrics;
  for (const auto& metric : status.at("metrics")) metrics[metric.at("name")] = metric.at("value");
  CHECK(metrics.at("loss") == "0.25");
  CHECK(metrics.at("step") == "41");
  CHECK(metrics.at("failures") == "4");

  JobSnapshot silent = job;
  silent.ranks.clear();
  const auto nothing =
      nlohmann::json::parse(trainer_status(silent, 1, std::nullopt)).at("trainerStatus");
  CHECK_FALSE(nothing.contains("progressPercentage"));
  CHECK_FALSE(nothing.contains("estimatedRemainingSeconds"));
  // 100 is said by the end alone, and only by a good one.
  JobSnapshot last = job;
  last.ranks[0].progress->step = 900;
  const auto percent = [&](std::optional<int> exit_status) {
    return nlohmann::json::parse(trainer_status(last, 1, exit_status))
        .at("trainerStatus")
        .at("progressPercentage");
  };
  CHECK(percent(std::nullopt) == 99);
  CHECK(percent(1) == 99);
  CHECK(percent(0) == 100);

  // What is over has a last step and no pace.
  const auto end = nlohmann::json::parse(trainer_status(job, 1, 75)).at("trainerStatus");
  CHECK(end.at("progressPercentage") == 4);
  CHECK_FALSE(end.contains("estimatedRemainingSeconds"));
  CHECK(contains(end.dump(), R"({"name":"step","value":"41"})"));
  CHECK_FALSE(contains(end.dump(), "images_per_second_of_rank"));
}
