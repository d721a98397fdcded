// The snapshot's JSON form in both directions, and who is said to be slow.
#include "launcher/status/job_snapshot.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/status/process_use.h"
#include "tests/launcher/status/full_job.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using ddprun::testing::full_job;

namespace {

RankSnapshot telling(int rank, std::int64_t step, double wait_s, double age_s = 0.01) {
  return {.rank = rank,
          .progress = RankProgress{.step = step, .step_s = 0.1, .wait_s = wait_s, .age_s = age_s}};
}

std::string slow(const std::vector<RankSnapshot>& ranks) {
  const auto found = slowest_of(ranks);
  return found ? std::to_string(found->rank) + " " + found->why : "nobody";
}

}  // namespace

TEST_CASE("17.2: a snapshot's JSON says all of it, and is read back as it was", "[watch]") {
  const JobSnapshot job = full_job();
  const std::string text = to_json(job);
  CHECK(text.find('\n') == std::string::npos);
  const auto read = parse_snapshot(text);
  REQUIRE(read);
  CHECK(to_json(*read) == text);
  CHECK(read->state == NodeState::Running);
  CHECK(read->ranks.at(0).progress->phase == "backward");
  CHECK(read->ranks.at(0).use.rss_bytes == 1 << 30);
  REQUIRE(read->ranks.at(0).gpu);
  CHECK(read->ranks.at(0).gpu->index == 3);
  CHECK(read->ranks.at(0).gpu->busy == 0.97);
  CHECK(read->ranks.at(0).gpu->memory_used == 7LL << 30);
  CHECK(read->ranks.at(0).gpu->memory_total == 80LL << 30);
  CHECK(read->ranks.at(0).gpu->own_bytes == 6LL << 30);
  CHECK(!read->ranks.at(1).gpu);
  CHECK(read->ranks.at(1).state == RankState::Failed);
  CHECK(read->ranks.at(1).signal == 9);
  CHECK_FALSE(read->ranks.at(1).progress);
  CHECK(read->failures.at(0).what == "<b>out of memory</b>");

  const auto object = nlohmann::json::parse(text);
  CHECK(object["run_id"] == "night \"7\"");
  CHECK(object["ranks"][0]["progress"]["images_per_s"] == 512.5);
  CHECK(object["ranks"][1]["signal"] == "SIGKILL");
  CHECK(object["ranks"][1]["progress"].is_null());
}

TEST_CASE("17.2: what is not known, and a loss that is no number, is null", "[watch]") {
  JobSnapshot job;
  job.ranks.push_back({.progress = RankProgress{.loss = std::numeric_limits<double>::quiet_NaN()}});
  const auto object = nlohmann::json::parse(to_json(job));
  const auto& progress = object["ranks"][0]["progress"];
  CHECK(progress["step"].is_null());
  CHECK(progress["loss"].is_null());
  CHECK(progress["age_s"].is_null());
  CHECK(object["slowest"].is_null());
  const auto read = parse_snapshot(to_json(job));
  REQUIRE(read);
  CHECK(read->ranks.at(0).progress->step == -1);
  CHECK_FALSE(read->ranks.at(0).progress->loss);
}

TEST_CASE("17.2: a text that is no snapshot is none; fields of another version do no harm",
          "[watch]") {
  CHECK_FALSE(parse_snapshot(""));
  CHECK_FALSE(parse_snapshot("[1]"));
  CHECK_FALSE(parse_snapshot(R"({"error": "busy"})"));
  const auto read = parse_snapshot(
      R"({"launcher_pid": 7, "run_id": 5, "state": "dreaming", "ranks": [3, {"rank": 1,)"
      R"( "progress": 4, "state": 2}], "failures": {}, "gpu": []})");
  REQUIRE(read);
  CHECK(read->launcher_pid == 7);
  CHECK(read->run_id.empty());
  CHECK(read->state == NodeState::Waiting);
  REQUIRE(read->ranks.size() == 1);
  CHECK(read->ranks[0].rank == 1);
  CHECK_FALSE(read->ranks[0].progress);
}

TEST_CASE("17.2: who is behind, or keeps the others waiting, is the slowest", "[watch]") {
  CHECK(slow({}) == "nobody");
  CHECK(slow({telling(0, 5, 0)}) == "nobody");
  // One step apart is where ranks are at any moment.
  CHECK(slow({telling(0, 6, 0.01), telling(1, 5, 0.01)}) == "nobody");
  CHECK(slow({telling(0, 7, 0.01), telling(1, 5, 0.01)}) == "1 is 2 steps behind");
  // ... unless it stands there.
  CHECK(slow({telling(0, 6, 0.01), telling(1, 5, 0.01, 9.0)}) ==
        "1 is 1 step behind, silent for 9 s");
  // All wait for the slowest: it waits least, and needs most of the step's time itself.
  CHECK(slow({telling(0, 5, 0.05), telling(1, 5, 0.002), telling(2, 5, 0.06)}) ==
        "1 needs 98.0 ms a step before it waits, others 50.0 ms");
  CHECK(slow({telling(0, 5, 0.005), telling(1, 5, 0.002)}) == "nobody");

  // Who has ended, or says nothing, is not compared.
  auto ended = telling(1, 2, 0);
  ended.state = RankState::Failed;
  CHECK(slow({telling(0, 5, 0.05), ended}) == "nobody");
  CHECK(slow({telling(0, 5, 0.05), RankSnapshot{.rank = 1}}) == "nobody");
  auto silent = telling(1, -1, 0);
  CHECK(slow({telling(0, 5, 0), silent}) == "nobody");
}

TEST_CASE("17.2: who stands while others wait for it is slow, and not those who wait", "[watch]") {
  const auto waiting = [](int rank, std::int64_t step, double age_s) {
    auto snapshot = telling(rank, step, 0, age_s);
    snapshot.progress->waiting_s = age_s;
    return snapshot;
  };
  CHECK(slow({waiting(0, 5, 12), telling(1, 5, 0, 11.6), waiting(2, 5, 11)}) ==
        "1 is awaited by others, silent for 12 s");
  // At the same step as it one waits, too.
  CHECK(slow({waiting(0, 5, 12), telling(1, 5, 0, 11.6), waiting(2, 6, 11)}) ==
        "1 is 1 step behind, silent for 12 s");
  // A moment is nothing.
  CHECK(slow({waiting(0, 5, 0.5), telling(1, 5, 0, 0.5)}) == "nobody");
  CHECK(slow({waiting(0, 5, 12), waiting(1, 5, 12)}) == "nobody");
}

TEST_CASE("17.2: a line of /proc/PID/stat is read, whatever the program is called", "[watch]") {
  const auto stat = ProcessStat::parse(
      "77 (a) b (c) S 1 77 77 0 -1 4194560 500 900 0 0 100 20 3 4 20 0 12 0 555 1000000 256 0 0\n");
  REQUIRE(stat);
  CHECK(stat->name() == "a) b (c");
  CHECK(stat->number(8) == -1);
  CHECK(stat->number(26) == 0);
  CHECK_FALSE(stat->number(27));
  const auto line = stat_line(*stat);
  REQUIRE(line);
  CHECK(line->state == 'S');
  CHECK(line->ticks == 127);
  CHECK(line->threads == 12);
  CHECK(line->rss_pages == 256);
  for (const char* text : {"", "77", ")(", "77 (a)", "77 (a) \n"}) {
    CHECK_FALSE(ProcessStat::parse(text));
  }
  CHECK_FALSE(stat_line(*ProcessStat::parse("77 (a) S 1 2 3")));
}

TEST_CASE("processor time is no less, to the bit, when a child's is its parent's", "[watch]") {
  const auto ticks = [](std::vector<long long> of_each) {
    std::vector<StatLine> lines;
    for (const long long each : of_each) lines.push_back({.ticks = each, .threads = 2});
    return sum_of(lines);
  };
  CHECK(ticks({10, 20}).cpu_s == ticks({30}).cpu_s);  // Seconds, 0.1 and 0.2, are more than 0.3.
  CHECK(ticks({129, 12}).cpu_s == ticks({141}).cpu_s);
  CHECK(ticks({10, 20}).processes == 2);
  CHECK(ticks({10, 20}).threads == 4);
  CHECK(ticks({}).processes == 0);
}

TEST_CASE("a counter of processor time stands still where a process is missing", "[watch]") {
  ProcessorTimes times;
  CHECK(times.never_back(7, 5) == 5);
  CHECK(times.never_back(7, 3) == 5);
  CHECK(times.never_back(7, 6) == 6);
  CHECK(times.never_back(8, 1) == 1);
  // The next process of that pid begins anew.
  times.keep_only({8, 9});
  CHECK(times.never_back(7, 2) == 2);
  CHECK(times.never_back(8, 0) == 1);
}

namespace {

NodeView other_node() {
  const JobSnapshot other = full_job();
  return {.host = "node2",
          .node_rank = 0,
          .address = "10.0.0.2",
          .port = 40'123,
          .silent_s = 0.5,
          .age_s = 1.5,
          .launcher_id = "c0de",
          .launcher_pid = 77,
          .state = NodeState::Running,
          .taken_s = 9.5,
          .since_s = 3,
          .attempt = 2,
          .first_rank = 0,
          .workers = 8,
          .log_dir = "/logs",
          .ranks = other.ranks};
}

}  // namespace

TEST_CASE("17.2: the job's other nodes come through JSON as they were", "[watch]") {
  JobSnapshot job = full_job();
  NodeView untold = other_node();
  untold.age_s.reset();
  untold.ranks.clear();
  job.others = {other_node(), untold};
  const auto again = parse_snapshot(to_json(job));
  REQUIRE(again);
  REQUIRE(again->others.size() == 2);
  CHECK(to_json(*again) == to_json(job));
  const NodeView& node = again->others[0];
  CHECK(node.host == "node2");
  CHECK(node.address == "10.0.0.2");
  CHECK(node.port == 40'123);
  CHECK(node.launcher_id == "c0de");
  CHECK(node.age_s == 1.5);
  CHECK(node.silent_s == 0.5);
  CHECK(node.state == NodeState::Running);
  REQUIRE(node.ranks.size() == 2);
  CHECK(node.ranks[0].progress->images_per_s == 512.5);
  CHECK(node.ranks[0].stdout_file == "/logs/attempt_2/0/stdout.log");
  CHECK(node.ranks[1].signal == 9);
  CHECK_FALSE(again->others[1].age_s);

  // What a launcher from before tells has none.
  CHECK(parse_snapshot(R"({"launcher_pid": 7})")->others.empty());
}

TEST_CASE("17.2: what a node tells its coordinator is short, and bounded", "[watch]") {
  JobSnapshot job = full_job();
  const std::string text = node_to_json(job, 100'000);
  CHECK(text.find('\n') == text.npos);
  const auto node = parse_node(text);
  REQUIRE(node);
  CHECK(node->launcher_pid == 4100);
  CHECK(node->launcher_id == "5a17");
  CHECK(node->state == NodeState::Running);
  CHECK(node->first_rank == 8);
  CHECK(node->taken_s == 12.5);
  CHECK(node->log_dir == "/logs/attempt_2");
  REQUIRE(node->ranks.size() == 2);
  CHECK(node->ranks[0].use.rss_bytes == 1 << 30);
  CHECK(node->ranks[1].state == RankState::Failed);
  CHECK_FALSE(node->age_s);  // That is for who hears it to say.

  while (job.ranks.size() < 4'096) job.ranks.push_back(job.ranks[0]);
  const std::string cut = node_to_json(job, 100'000);
  CHECK(cut.size() <= 100'000);
  REQUIRE(parse_node(cut));
  CHECK(parse_node(cut)->ranks.size() > 100);
  CHECK(node_to_json(job, 0).size() < 1'000);
}

TEST_CASE("17.2: of another machine texts are visible and short, numbers within bounds",
          "[watch]") {
  nlohmann::json evil = nlohmann::json::parse(node_to_json(full_job(), 100'000));
  evil["log_dir"] = "/a\033[2J\nb" + std::string(9'000, 'x');
  evil["first_rank"] = 9'000'000'000'000'000'000ULL;
  evil["workers"] = -9'000'000'000'000'000'000LL;
  evil["since_s"] = 1e300;
  evil["ranks"][0]["rank"] = 1ULL << 63;
  evil["ranks"][0]["progress"]["phase"] = "\033]0;x\007";
  evil["ranks"][1] = "no rank";
  const auto node = parse_node(evil.dump());
  REQUIRE(node);
  CHECK(node->log_dir.starts_with("/a^[[2J^Jb"));
  CHECK(node->log_dir.size() < 2'000);
  CHECK(node->first_rank == 1'000'000'000);
  CHECK(node->workers == -1'000'000'000);
  CHECK(node->since_s == 1e15);
  REQUIRE(node->ranks.size() == 1);
  CHECK(node->ranks[0].progress->phase == "^[]0;x^G");

  nlohmann::json job = nlohmann::json::parse(to_json(full_job()));
  job["run_id"] = "a\033b";
  CHECK(parse_snapshot(job.dump(), Writer::Peer)->run_id == "a^[b");
  CHECK(parse_snapshot(job.dump(), Writer::OwnHost)->run_id == "a\033b");
  for (const char* text : {"", "{", "[]", "{}", "1", "{\"launcher_pid\""}) {
    CHECK_FALSE(parse_node(text));
    CHECK_FALSE(parse_snapshot(text, Writer::Peer));
  }
}

TEST_CASE("17.2: the slowest is looked for among all nodes", "[watch]") {
  JobSnapshot job{.ranks = {telling(0, 9, 0), telling(1, 9, 0)}};
  job.others.push_back({.age_s = 0.1, .ranks = {telling(2, 5, 0), telling(3, 9, 0)}});
  CHECK(slow(job.ranks) == "nobody");
  CHECK(slow(all_ranks(job)).starts_with("2 is 4 steps behind"));
  CHECK(all_ranks(job).size() == 4);
  CHECK(all_ranks(job)[3].rank == 3);
}

TEST_CASE("17.2: what another node told a while ago blames nobody for steps done since",
          "[watch]") {
  // Steps of 0.1 s, in lockstep: node 1 told half a second ago.
  JobSnapshot job{.ranks = {telling(0, 25, 0), telling(1, 25, 0)}};
  const auto slow_among = [&](std::vector<RankSnapshot> others, double age_s, double silent_s = 0) {
    job.others = {{.silent_s = silent_s, .age_s = age_s, .ranks = std::move(others)}};
    return slow(all_ranks(job));
  };
  CHECK(slow_among({telling(2, 20, 0), telling(3, 20, 0)}, 0.5) == "nobody");
  CHECK(slow_among({telling(2, 17, 0), telling(3, 20, 0)}, 0.5) == "2 is 3 steps behind");
  // What stands in this node's own memory is of now.
  CHECK(slow_among({telling(2, 28, 0), telling(3, 28, 0)}, 0.5) == "0 is 3 steps behind");
  CHECK(slow_among({telling(2, 26, 0), telling(3, 30, 0)}, 2.5) == "0 is 5 steps behind");
  // Of one node's ranks all was told at once.
  job.ranks = {telling(0, 9, 0)};
  CHECK(slow_among({telling(2, 5, 0), telling(3, 9, 0)}, 2.5) == "2 is 4 steps behind");

  // The others have stood since before it told: they were ahead of it then.
  job.ranks = {telling(0, 25, 0, 9.5)};
  CHECK(slow_among({telling(2, 24, 0, 9.0)}, 0.5) == "2 is 1 step behind, silent for 9 s");
  // They go on: perhaps it does, too.
  job.ranks = {telling(0, 25, 0)};
  CHECK(slow_among({telling(2, 24, 0, 9.0)}, 0.5) == "nobody");

  // Nobody knows how long a step is, as with programs that tell their steps alone.
  const auto brief = [](int rank, std::int64_t step, double age_s) {
    return RankSnapshot{.rank = rank, .progress = RankProgress{.step = step, .age_s = age_s}};
  };
  job.ranks = {brief(0, 25, 0.01)};
  CHECK(slow_among({brief(2, 19, 0.01)}, 0.5) == "nobody");
  CHECK(slow_among({brief(2, 19, 4.0)}, 0.5) == "2 is 1 step behind, silent for 4 s");

  // Of a silent node nobody knows where it is.
  job.ranks = {telling(0, 2'000, 0)};
  CHECK(slow_among({telling(2, 5, 0, 9.0)}, 2.5) == "2 is 1970 steps behind, silent for 9 s");
  CHECK(slow_among({telling(2, 5, 0, 9.0)}, 3.5) == "nobody");
  CHECK(slow_among({telling(2, 5, 0, 9.0)}, 0.5, 3.5) == "nobody");
}

TEST_CASE("17.2: steps of no sense that another machine tells overflow nothing", "[watch]") {
  JobSnapshot job{.ranks = {telling(0, 5, 0)}};
  RankSnapshot odd = telling(1, INT64_MAX - 1, 0);
  odd.progress->step_s = 1e-310;
  job.others = {{.age_s = 1.0, .ranks = {odd, telling(2, INT64_MIN, 0)}}};
  CHECK(slow(all_ranks(job)) == "nobody");
  job.others[0].ranks[1].progress->step = 0;
  CHECK(slow(all_ranks(job)).starts_with("2 is 92233"));
}

TEST_CASE("17.2: what a worker said last stays when it has ended, but no pace and no wait",
          "[watch]") {
  const RankProgress said{.step = 40,
                          .total_steps = 100,
                          .epoch = 2,
                          .phase = "all-reduce",
                          .images = 640,
                          .images_per_s = 100,
                          .loss = 0.5,
                          .step_s = 0.2,
                          .data_s = 0.1,
                          .wait_s = 0.1,
                          .data_total_s = 4,
                          .wait_total_s = 5,
                          .age_s = 1,
                          .waiting_s = 1,
                          .said_at_ns = 7,
                          .waiting_since_ns = 7};
  JobSnapshot job;
  job.ranks.push_back({.state = RankState::Failed, .progress = progress_of_ended(said)});
  const auto back = parse_snapshot(to_json(job));
  REQUIRE(back);
  const RankProgress& last = *back->ranks.at(0).progress;
  CHECK(last.step == 40);
  CHECK(last.total_steps == 100);
  CHECK(last.epoch == 2);
  CHECK(last.images == 640);
  CHECK(last.loss == 0.5);
  CHECK(last.data_total_s == 4);
  CHECK(last.wait_total_s == 5);
  CHECK(last.phase.empty());
  CHECK(last.images_per_s == 0);
  CHECK(last.step_s == 0);
  CHECK_FALSE(last.age_s);
  CHECK_FALSE(last.waiting_s);
}
