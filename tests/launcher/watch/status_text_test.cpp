// What people read of a job, and what of it fits on a screen.
#include "launcher/watch/status_text.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

JobSnapshot running_job() {
  JobSnapshot job{.run_id = "night",
                  .program = "./train",
                  .host = "node1",
                  .launcher_pid = 4100,
                  .taken_s = 100,
                  .state = NodeState::Running,
                  .since_s = 10,
                  .attempt = 1,
                  .attempts = 2,
                  .max_restarts = 3,
                  .node_rank = 1,
                  .nodes = 2,
                  .first_rank = 2,
                  .workers = 2,
                  .world_size = 4};
  job.ranks.push_back(
      {.rank = 2,
       .pid = 4127,
       .use = {.processes = 1, .threads = 4, .rss_bytes = 512 << 20, .cpu_s = 9, .state = 'R'},
       .progress = RankProgress{.step = 41,
                                .total_steps = 900,
                                .epoch = 2,
                                .phase = "backward",
                                .images_per_s = 512,
                                .loss = 0.25,
                                .step_s = 0.125,
                                .data_s = 0.0125,
                                .wait_s = 0.0625,
                                .age_s = 0.01}});
  job.ranks.push_back(
      {.rank = 3,
       .local_rank = 1,
       .pid = 4128,
       .use = {.processes = 1, .threads = 1, .rss_bytes = 3LL << 30, .cpu_s = 5, .state = 'S'}});
  return job;
}

std::string text_of(const JobSnapshot& job, std::size_t columns = 80) {
  return status_text({job, std::nullopt}, columns, 0);
}

bool holds(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// The row of one rank, without its first columns.
std::string doing(RankSnapshot rank) {
  JobSnapshot job = running_job();
  job.ranks = {std::move(rank)};
  const std::string text = text_of(job);
  const std::size_t row = text.find('\n', text.find("\nRANK") + 1) + 1;
  std::string word = text.substr(row + 25, 15);
  word.erase(word.find_last_not_of(' ') + 1);
  return word;
}

}  // namespace

TEST_CASE("17.2: the status of a job says all that is known, in 80 columns", "[watch]") {
  CHECK(text_of(running_job()) ==
        "night: ./train (launcher 4100 on node1)\n"
        "  running for 10 s: attempt 1 (--max-restarts 3), node 1 of 2, ranks 2-3 of 4\n"
        "  step 41 of 900, epoch 2, loss 0.25, 512 images/s here\n"
        "RANK     PID        STEP DOING            IMG/S   TIME  DATA  WAIT   CPU    RSS\n"
        "   2    4127      41/900 backward           512  125ms   10%   50%   90%   512M\n"
        "   3    4128           - sleeping             -      -     -     -   50%   3.0G\n");
}

TEST_CASE("what a node without workers waits for is told", "[watch]") {
  JobSnapshot job = running_job();
  job.ranks.clear();
  job.state = NodeState::Checking;
  CHECK(holds(text_of(job), "waiting for its --node-check after attempt 1 (--max-restarts 3)"));
  job.attempts = 0;
  CHECK(holds(text_of(job), "waiting for its --node-check for 10 s"));
  job.state = NodeState::Waiting;
  CHECK(holds(text_of(job), "waiting for other nodes for 10 s"));
}

// An attempt of hours that a failure has ended a moment ago has not been stopped for hours.
TEST_CASE("how old an attempt is passes for no other state's time", "[watch]") {
  JobSnapshot job = running_job();
  const std::string rest =
      ": attempt 1, 10 s old (--max-restarts 3), node 1 of 2, ranks 2-3 of 4\n";
  for (const NodeState state : {NodeState::Stopping, NodeState::Stopped, NodeState::Succeeded}) {
    job.state = state;
    INFO(text_of(job));
    CHECK(holds(text_of(job), std::string("  ") + name_of(state) + rest));
  }
}

TEST_CASE("17.2: with GPUs their use is shown in place of the machine's memory, in 80 columns",
          "[watch]") {
  JobSnapshot job = running_job();
  job.ranks[0].gpu =
      GpuUse{.index = 1, .busy = 0.97, .memory_used = 7LL << 30, .own_bytes = 6LL << 30};
  const std::string text = text_of(job);
  CHECK(
      holds(text,
            "RANK     PID        STEP DOING        IMG/S   TIME  DATA  WAIT   CPU  GPU   GMEM\n"
            "   2    4127      41/900 backward       512  125ms   10%   50%   90%  97%   6.0G\n"
            "   3    4128           - sleeping         -      -     -     -   50%    -      -\n"));
  CHECK_FALSE(holds(text, "slowed"));
  // What is usual at full load is no news.
  job.ranks[0].gpu->clock.slowdown = Slowdown::PowerLimit;
  CHECK_FALSE(holds(text_of(job), "slowed"));
  job.ranks[0].gpu->clock.slowdown = Slowdown::Heat;
  job.ranks[0].gpu->clock.mhz = 780;
  job.ranks[0].gpu->clock.max_mhz = 1980;
  CHECK(holds(text_of(job), "  slowed down: GPU 1 of rank 2, by heat: 780 of 1980 MHz\n"));
  job.ranks[1].gpu = GpuUse{.index = 2, .clock = {.slowdown = Slowdown::PowerBrake}};
  CHECK(holds(text_of(job), "by heat: 780 of 1980 MHz; and 1 more\n"));
  job.ranks[0].gpu->clock.slowdown = Slowdown::None;
  CHECK(holds(text_of(job), "  slowed down: GPU 2 of rank 3, by the power brake\n"));
  job.ranks[1].gpu.reset();
  // What the worker has of it is not told in every container.
  job.ranks[0].gpu->own_bytes = -1;
  CHECK(holds(text_of(job), "   7.0G\n"));
}

TEST_CASE("17.2: processor time is that of now where there are two looks", "[watch]") {
  JobSnapshot before = running_job();
  before.taken_s = 99;
  before.ranks[0].use.cpu_s = 7;
  before.ranks[1].pid = 9999;  // Another process had its place.
  const std::string text = status_text({running_job(), before}, 80, 0);
  CHECK(holds(text, " 200%   512M\n"));
  CHECK(holds(text, "  50%   3.0G\n"));
}

TEST_CASE("17.2: a failure stays visible; a name cannot draw on the terminal", "[watch]") {
  JobSnapshot job = running_job();
  job.run_id = "a\033[2Jb";
  job.failures = {{.time_unix_s = 43'384,
                   .attempt = 0,
                   .rank = 3,
                   .text = "rank 3 was killed",
                   .what = "no memory"}};
  job.failures_total = 4;
  const std::string text = text_of(job);
  CHECK(holds(text,
              "  failures so far: 4, the last ones:\n"
              "  12:03:04 attempt 0: rank 3 was killed\n"
              "    no memory\n"));
  CHECK(text.find('\033') == std::string::npos);
  CHECK(clock_text(43'384, -43'385) == "23:59:59");
  // A pid's worth of width, however long what others said.
  job.failures[0].what = std::string(300, 'x');
  for (std::size_t at = 0, end; at < text_of(job).size(); at = end + 1) {
    end = text_of(job).find('\n', at);
    CHECK(end - at <= 80);
  }
}

TEST_CASE("17.2: of many ranks the last failure stands above them, where a screen begins",
          "[watch]") {
  JobSnapshot job = running_job();
  job.failures = {{.text = "rank 2 hung"}, {.text = "rank 3 was killed"}};
  job.failures_total = 2;
  CHECK_FALSE(holds(text_of(job), "last failure"));  // It is seen below two ranks.
  while (job.ranks.size() < 9) job.ranks.push_back(job.ranks.back());
  const std::string text = text_of(job);
  CHECK(holds(text, "\n  last failure of 2: rank 3 was killed\nRANK "));
  CHECK(holds(text, "\n  failures so far: 2\n"));
  job.failures.clear();
  job.failures_total = 0;
  CHECK_FALSE(holds(text_of(job), "last failure"));
}

TEST_CASE("17.2: what a rank does is said by itself, else by the kernel, else by its end",
          "[watch]") {
  const auto rank = [](char state, RankState how = RankState::Running) {
    return RankSnapshot{.state = how, .use = {.processes = 1, .state = state}};
  };
  CHECK(doing(rank('R')) == "running");
  CHECK(doing(rank('S')) == "sleeping");
  CHECK(doing(rank('D')) == "disk wait");
  CHECK(doing(rank('T')) == "halted");
  CHECK(doing(rank('Z')) == "ending");
  CHECK(doing(rank('?')) == "gone");
  CHECK(doing(rank('S', RankState::Parked)) == "parked");
  CHECK(doing(rank('?', RankState::Succeeded)) == "succeeded");
  CHECK(doing(rank('?', RankState::Stopped)) == "stopped");
  auto failed = rank('?', RankState::Failed);
  failed.exit_code = 3;
  CHECK(doing(failed) == "exit 3");
  failed.signal = 11;
  CHECK(doing(failed) == "SIGSEGV");

  auto telling = rank('S');
  telling.progress = RankProgress{.step = 4, .phase = "forward", .step_s = 1, .age_s = 2.5};
  CHECK(doing(telling) == "forward");  // A step takes as long.
  telling.progress->age_s = 31.2;
  CHECK(doing(telling) == "forward 31s");
  telling.use.state = 'T';
  CHECK(doing(telling) == "halted 31s");
  telling.use.state = 'S';
  telling.progress->phase = "";
  CHECK(doing(telling) == "sleeping 31s");
  telling.progress->phase = "a very long phase name";
  CHECK(doing(telling).size() <= 15);
}

TEST_CASE("17.2: images/s stop when a rank stands", "[watch]") {
  JobSnapshot job = running_job();
  job.ranks[0].progress->age_s = 60;
  const std::string text = text_of(job);
  CHECK(text.find("images/s") == std::string::npos);
  CHECK(holds(text, "41/900 backward 60s         -      -     -     -   90%"));
}

TEST_CASE("17.2: several jobs are a list, and each is called by pid, name or program", "[watch]") {
  JobSnapshot job = running_job(), other = running_job();
  other.run_id = "none";
  other.launcher_pid = 77;
  other.workers = 1;
  CHECK(list_text({job, other}, 80) ==
        "    PID JOB                  STATE      ATTEMPT     RANKS FAILURES  PROGRAM\n"
        "   4100 night                running          1       2/4        0  ./train\n"
        "     77 pid 77               running          1       1/4        0  ./train\n");
  CHECK(is_called(job, "4100"));
  CHECK(is_called(job, "night"));
  CHECK(is_called(job, "train"));
  CHECK(is_called(job, "./train"));
  CHECK_FALSE(is_called(job, "trai"));
  CHECK_FALSE(is_called(other, "night"));
}

TEST_CASE("17.2: a screen has its rows and columns, whatever there is to show", "[watch]") {
  std::vector<std::string> lines;
  for (int i = 0; i < 30; ++i) lines.push_back("line " + std::to_string(i) + std::string(90, '.'));
  for (std::size_t rows = 1; rows <= 40; ++rows) {
    for (const std::size_t wanted : {std::size_t{0}, std::size_t{7}, std::size_t{1'000}}) {
      std::size_t scroll = wanted;
      const auto screen = screen_of(lines, "q quit", rows, 20, scroll);
      REQUIRE(screen.size() == rows);
      for (const std::string& line : screen) CHECK(line.size() <= 20);
      CHECK(screen.back().substr(0, 6) == "q quit");
      if (rows > 30) CHECK(scroll == 0);
      if (rows > 1 && rows <= 30) {
        CHECK(scroll <= lines.size() - (rows - 1));
        CHECK(screen[0].rfind("line " + std::to_string(scroll), 0) == 0);
        if (wanted == 1'000) CHECK(screen[rows - 2].rfind("line 29", 0) == 0);
      }
    }
  }
  std::size_t scroll = 0;
  CHECK(screen_of(lines, "q", 0, 20, scroll).empty());
  CHECK(screen_of({}, "q", 3, 80, scroll) == std::vector<std::string>{"", "", "q"});
}

namespace {

// Two nodes of eight ranks each; the second is seen from the first.
JobSnapshot two_nodes() {
  JobSnapshot job = running_job();
  job.node_rank = job.first_rank = 0;
  job.workers = 8;
  job.world_size = 16;
  const RankSnapshot like = job.ranks[0];
  job.ranks.clear();
  NodeView other{.host = "node2",
                 .node_rank = 1,
                 .silent_s = 0.1,
                 .age_s = 0.2,
                 .launcher_pid = 77,
                 .state = NodeState::Running,
                 .taken_s = 5,
                 .since_s = 10,
                 .attempt = 1,
                 .first_rank = 8,
                 .workers = 8,
                 .log_dir = "/var/log/job"};
  for (int rank = 0; rank < 16; ++rank) {
    RankSnapshot each = like;
    each.rank = rank;
    each.local_rank = rank % 8;
    each.pid += rank;
    if (rank == 9) each.progress->step -= 3;
    (rank < 8 ? job.ranks : other.ranks).push_back(each);
  }
  job.others.push_back(other);
  return job;
}

}  // namespace

TEST_CASE("17.2: top shows 16 ranks on two nodes on a terminal of 80 by 24, by node", "[watch]") {
  std::size_t scroll = 0;
  const auto lines = jobs_lines({{two_nodes(), std::nullopt}}, 0);
  const auto screen = screen_of(lines, "q quit", 24, 80, scroll);
  REQUIRE(screen.size() == 24);
  for (const std::string& line : screen) CHECK(line.size() <= 80);
  CHECK(screen[2] == "  step 41 of 900, epoch 2, loss 0.25, 8192 images/s");
  CHECK(screen[3].starts_with("  slowest: rank 9 is 3 steps behind"));
  CHECK(screen[5] == "node 0 on node1: running, launcher 4100");
  CHECK(screen[6].starts_with("   0    4127"));
  CHECK(screen[14] == "node 1 on node2: running, launcher 77, logs /var/log/job");
  CHECK(screen[15].starts_with("   8 "));
  CHECK(screen[22].starts_with("  15 "));
  CHECK(screen[23] == "q quit");  // All of it fits.
}

TEST_CASE("17.2: nodes stand in the order of their ranks, those in no round last", "[watch]") {
  JobSnapshot job = two_nodes();
  job.node_rank = 1;
  job.others[0].node_rank = 2;
  NodeView first = job.others[0], spare = job.others[0];
  first.node_rank = 0;
  spare.node_rank = -1;
  spare.ranks.clear();
  job.others = {first, job.others[0], spare};
  const std::string text = text_of(job);
  const auto at = [&](const char* part) { return text.find(part); };
  CHECK(at("node 0 on node2") < at("node 1 on node1"));
  CHECK(at("node 1 on node1") < at("node 2 on node2"));
  CHECK(at("node 2 on node2") < at("node on node2"));
  CHECK(at("node on node2") != text.npos);
}

TEST_CASE("17.2: a node that is silent is shown as such, with since when", "[watch]") {
  JobSnapshot job = two_nodes();
  CHECK_FALSE(is_silent(job.others[0]));
  job.others[0].age_s = 12;
  CHECK(holds(text_of(job), "node 1 on node2: silent for 12 s, was running, launcher 77"));
  job.others[0].age_s = 1;
  job.others[0].silent_s = 40;
  CHECK(holds(text_of(job), "node 1 on node2: silent for 40 s, was running"));
  job.others[0].age_s.reset();
  CHECK(holds(text_of(job), "node 1 on node2: silent for 40 s\n"));
  job.others[0].silent_s = 0.5;  // It is there, and its ddprun cannot answer.
  CHECK(holds(text_of(job), "node 1 on node2: tells nothing\n"));
}

TEST_CASE("17.2: another node's processor time is counted on its own clock", "[watch]") {
  const JobSnapshot before = two_nodes();
  JobSnapshot now = before;
  now.taken_s += 1'000;
  now.others[0].taken_s += 2;
  now.others[0].ranks[0].use.cpu_s += 1;
  const std::string text = status_text({now, before}, 80, 0);
  CHECK(holds(text,
              "   8    4135      41/900 backward           512  125ms   10%   50%   50%   512M"));
  // Nothing new has come of it since.
  now.others[0].taken_s -= 2;
  CHECK(holds(status_text({now, before}, 80, 0), "10%   50%  100%   512M"));
}

TEST_CASE("17.2: of two launchers of one job on this host one is shown", "[watch]") {
  const JobSnapshot job = two_nodes();
  JobSnapshot other{.run_id = job.run_id, .host = "node2", .launcher_pid = 77};
  CHECK(shows(job, other));
  CHECK_FALSE(shows(other, job));
  other.host = "node3";
  CHECK_FALSE(shows(job, other));
  other.host = "node2";
  // Two containers with the host's network may have equal pids.
  JobSnapshot with_ids = job;
  with_ids.others[0].launcher_id = "5a17";
  other.launcher_id = "c0de";
  CHECK_FALSE(shows(with_ids, other));
  other.launcher_id = "5a17";
  CHECK(shows(with_ids, other));
  other.run_id = "day";
  CHECK_FALSE(shows(job, other));
}
