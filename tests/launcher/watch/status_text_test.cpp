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
