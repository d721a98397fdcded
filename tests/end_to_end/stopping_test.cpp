// Whoever stops a training, and however: the workers agree on a step, save it, and the same command
// goes on from there.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/json_lines.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 120s;
const std::string endless = "1000000";

std::vector<std::string> train(const TemporaryFolder& folder, const std::string& steps,
                               const std::vector<std::string>& more = {}) {
  const std::vector<std::string> common{
      "--print-freq", "1",         "--steps",         steps, "--checkpoint-dir",
      folder / "run", "--metrics", folder / "metrics"};
  return small_training(common + more);
}

std::vector<std::string> two_workers(const std::vector<std::string>& program) {
  return launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "2"}) + program;
}

std::vector<nlohmann::json> events(const TemporaryFolder& folder, const std::string& name) {
  std::vector<nlohmann::json> found;
  for (nlohmann::json& event : whole_json_lines(folder / "metrics")) {
    if (event.at("event") == name) found.push_back(std::move(event));
  }
  return found;
}

// What a stop leaves: the last step that was done is the one that was saved and told.
void check_kept(const TemporaryFolder& folder, const ProcessResult& result,
                const std::string& reason) {
  INFO(result.output);
  const int step = number_after(result.output, reason + ": saved step ");
  CHECK(contains(result.output, "in " + (folder / "run") + "; the same command goes on"));
  REQUIRE(events(folder, "stopped").size() == 1);
  CHECK(events(folder, "stopped")[0].at("step") == step);
  CHECK(events(folder, "stopped")[0].at("reason") == reason);
  CHECK(events(folder, "train").back().at("step") == step);
  CHECK(events(folder, "start").size() == 1);  // Nobody has started it again.
  CHECK_FALSE(contains(result.output, "FAILED"));
  CHECK_FALSE(contains(result.output, "closed the"));  // No rank complains of another.
}

// A job of two workers that is about to write the checkpoint of step 33, for as long as nobody
// reads the pipe that is in the place of the file.
struct WritingJob {
  explicit WritingJob(const std::vector<std::string>& launcher,
                      const std::vector<std::string>& more)
      : job(launch(std::vector<std::string>{"--standalone", "--nproc-per-node", "2"} + launcher) +
            train(folder, endless, std::vector<std::string>{"--checkpoint-every", "33"} + more)) {
    REQUIRE(job.wait_for_output("Epoch: [1][ 3/16]", limit));
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    REQUIRE(job.wait_for_output("Epoch: [3][ 2/16]", limit));
    for (const int pid : descendants_running(job.pid(), "train"))
      pid_of[writes_metrics(pid) ? 0 : 1] = pid;
    REQUIRE(pid_of[0] > 0);
    REQUIRE(pid_of[1] > 0);
  }

  // As rank 0 does.
  bool writes_metrics(int pid) const {
    const std::filesystem::path files = "/proc/" + std::to_string(pid) + "/fd";
    for (const auto& file : std::filesystem::directory_iterator(files)) {
      std::error_code gone;
      if (std::filesystem::read_symlink(file.path(), gone) == folder / "metrics") return true;
    }
    return false;
  }

  // Reads the pipe until the writer is through: that it is no file is what it finds last. Returns
  // what the job has said then.
  std::string read_pipe() {
    const int fd = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    std::vector<char> bytes(1 << 16);
    job.wait_until(
        [&] {
          while (::read(fd, bytes.data(), bytes.size()) > 0) {
          }
          return contains(job.output(), "Illegal seek");
        },
        30s);
    ::close(fd);
    job.send_signal(SIGTERM);
    return job.wait(limit).output;
  }

  TemporaryFolder folder;
  const std::string pipe = folder / "run/epoch_0002_step_0000033.safetensors.partial";
  Process job;
  int pid_of[2] = {};  // By rank.
};

struct Way {
  int signal;
  std::string name;
  int status;
};

}  // namespace

TEST_CASE("14.10: a checkpoint that is being written when a worker dies is written") {
  WritingJob writing({}, {});
  ::kill(writing.pid_of[1], SIGKILL);
  // The launcher ends the other one, which waits for its disk for longer than it would for a step.
  CHECK(writing.job.wait_for_output("told to stop, and still writing a checkpoint", limit));
  const std::string output = writing.read_pipe();
  INFO(output);
  CHECK(contains(output, "step_0000033.safetensors.partial: cannot be written: Illegal seek"));
  CHECK_FALSE(contains(output, "ending without saving"));
}

TEST_CASE(
    "14.10: a checkpoint that is being written when its worker recovers in place is written") {
  WritingJob writing({"--max-restarts", "1"}, {"--shards", "2"});
  ::kill(writing.pid_of[1], SIGKILL);
  ::kill(writing.pid_of[0], SIGTERM);  // As where no attempt follows: it ends, but not before.
  CHECK(writing.job.wait_for_output("told to stop, and still writing a checkpoint", limit));
  const std::string output = writing.read_pipe();
  INFO(output);
  CHECK(contains(output, "step_0000033.safetensors.partial: cannot be written: Illegal seek"));
}

TEST_CASE("14.10: a job that was preempted goes on and ends as one that was left alone") {
  TemporaryFolder whole, cut;
  const auto undisturbed = run(two_workers(train(whole, "100")), limit);
  INFO(undisturbed.output);
  REQUIRE(undisturbed.status == 0);

  Process job(two_workers(train(cut, "100")));
  REQUIRE(job.wait_for_output("Epoch: [1][ 3/16]", limit));
  job.send_signal(SIGTERM);
  const auto stopped = job.wait(limit);
  CHECK(stopped.status == 75);
  check_kept(cut, stopped, "SIGTERM");
  const auto resumed = run(two_workers(train(cut, "100")), limit);
  INFO(resumed.output);
  REQUIRE(resumed.status == 0);

  CHECK(events(cut, "start")[1].at("resumed_from_step") == events(cut, "stopped")[0].at("step"));
  const bool same_weights = newest_tensors(whole / "run") == newest_tensors(cut / "run");
  CHECK(same_weights);
}

TEST_CASE("14.10: each signal to train alone keeps the work") {
  for (const Way& way : {Way{SIGTERM, "SIGTERM", 75}, Way{SIGUSR1, "SIGUSR1", 75},
                         Way{SIGINT, "SIGINT", 130}, Way{SIGHUP, "SIGHUP", 129}}) {
    TemporaryFolder folder;
    Process process(train(folder, endless), one_thread);
    REQUIRE(process.wait_for_output("Epoch: [1][ 3/32]", limit));
    process.send_signal(way.signal);
    const auto result = process.wait(limit);
    CHECK(result.status == way.status);
    check_kept(folder, result, way.name);
  }
}

TEST_CASE("a stop that is asked for before the peers have come keeps the first step") {
  TemporaryFolder folder;
  const std::string meet = folder / "meet";
  const auto rank = [&](const std::string& number) {
    return train(folder, endless,
                 {"--init-method", "file://" + meet, "--rank", number, "--world-size", "2"});
  };
  Process first(rank("0"), one_thread);
  REQUIRE(first.wait_until([&] { return std::filesystem::exists(meet); }, limit));
  first.send_signal(SIGUSR1);
  Process second(rank("1"), one_thread);
  const auto result = first.wait(limit);
  CHECK(result.status == 75);
  CHECK(second.wait(limit).status == 75);
  check_kept(folder, result, "SIGUSR1");
}

TEST_CASE("a signal that comes when all is done changes nothing of how a run has ended") {
  TemporaryFolder folder;
  Process process(train(folder, "2"), one_thread);
  REQUIRE(process.wait_for_output("Done: 2 steps", limit));
  // All the way to its end, which takes LibTorch a while.
  CHECK(process.wait_until(
      [&] {
        process.send_signal(SIGTERM);
        siginfo_t ended{};
        ::waitid(P_PID, static_cast<id_t>(process.pid()), &ended, WEXITED | WNOHANG | WNOWAIT);
        return ended.si_pid != 0;
      },
      limit));
  const auto result = process.wait(limit);
  INFO(result.output);
  CHECK(result.status == 0);
}

TEST_CASE("14.10: a signal to one worker stops all of them at one step, and nobody is blamed") {
  TemporaryFolder folder;
  Process job(two_workers(train(folder, endless)));
  REQUIRE(job.wait_for_output("Epoch: [1][ 3/16]", limit));
  const std::vector<int> workers = descendants_running(job.pid(), "train");
  REQUIRE(workers.size() == 2);
  ::kill(workers[1], SIGUSR1);
  const auto result = job.wait(limit);
  CHECK(result.status == 75);
  check_kept(folder, result, "SIGUSR1");
  CHECK(contains(result.output, "asks to be queued again"));
}

TEST_CASE("14.10: Ctrl-C and a hang-up of ddprun keep the work, and its status says which it was") {
  for (const Way& way : {Way{SIGINT, "SIGINT", 130}, Way{SIGHUP, "SIGHUP", 129}}) {
    TemporaryFolder folder;
    Process job(two_workers(train(folder, endless)));
    REQUIRE(job.wait_for_output("Epoch: [1][ 3/16]", limit));
    job.send_signal(way.signal);
    const auto result = job.wait(limit);
    CHECK(result.status == way.status);
    check_kept(folder, result, way.name);
  }
}

TEST_CASE("a lost terminal loses no step, neither of a job nor of train alone") {
  for (const bool alone : {true, false}) {
    INFO((alone ? "alone" : "ddprun"));
    TemporaryFolder folder;
    const auto with_steps = [&](const std::string& steps) {
      return alone ? train(folder, steps) : two_workers(train(folder, steps));
    };
    std::string line = "exec";
    for (const std::string& word : with_steps(endless)) line += " '" + word + "'";
    // script(1) is the terminal: the job is its session's leader, and hung up when it dies.
    Process terminal({"script", "-qec", line, "/dev/null"}, one_thread);
    REQUIRE(terminal.wait_until([&] { return events(folder, "train").size() >= 3; }, limit));
    const std::vector<int> job = descendants_of(terminal.pid());
    terminal.send_signal(SIGKILL);
    REQUIRE(wait_until_gone(job, limit));

    REQUIRE(events(folder, "stopped").size() == 1);
    const auto stopped = events(folder, "stopped")[0];
    CHECK(stopped.at("reason") == "SIGHUP");
    CHECK(stopped.at("saved") == true);
    const int step = stopped.at("step");
    const auto resumed = run(with_steps(std::to_string(step + 1)), limit, one_thread);
    INFO(resumed.output);
    CHECK(resumed.status == 0);
    CHECK(events(folder, "start").at(1).at("resumed_from_step") == step);
  }
}

TEST_CASE("14.10: --max-time ends a job with 75, to be queued again and not to be restarted") {
  TemporaryFolder folder;
  const auto result = run(two_workers(train(folder, endless, {"--max-time", "1s"})), limit);
  CHECK(result.status == 75);
  check_kept(folder, result, "--max-time");
}

TEST_CASE("14.10: --max-time is the job's, and not each attempt's") {
  // ddprun tells all attempts when it has started ...
  const auto told = run(launch({"--standalone", "--max-restarts", "1"}) +
                            shell("echo launched at $DDPRUN_LAUNCHED_AT.; "
                                  "exit $((1 - TORCHELASTIC_RESTART_COUNT))"),
                        limit);
  INFO(told.output);
  CHECK(told.status == 0);
  const int at = number_after(told.output, "launched at ");
  CHECK(count_of(told.output, "launched at " + std::to_string(at) + ".\n") == 2);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  CHECK(std::chrono::seconds(at) <= now);
  CHECK(std::chrono::seconds(at) >= now - patience(limit));

  // ... and train counts from there: the time is over before this attempt's first step.
  TemporaryFolder folder;
  auto launched = one_thread;
  launched.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DDPRUN_LAUNCHED_AT", "0"}});
  const auto late = run(train(folder, endless, {"--max-time", "1s"}), limit, launched);
  INFO(late.output);
  CHECK(late.status == 75);
  CHECK(number_after(late.output, "--max-time: saved step ") <= 2);
}

TEST_CASE("14.10: without a checkpoint folder a stop says that nothing is kept") {
  Process process(small_training({"--print-freq", "1", "--steps", endless}), one_thread);
  REQUIRE(process.wait_for_output("Epoch: [1][ 3/32]", limit));
  process.send_signal(SIGTERM);
  const auto result = process.wait(limit);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK(contains(result.output, "nothing is kept: give --checkpoint-dir"));
}

TEST_CASE("14.10: an elastic job that grows loses no step") {
  TemporaryFolder folder;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto node = [&](const std::string& steps) {
    return launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
                   "--rdzv-id", "grow", "--rdzv-conf", "last_call_timeout=0", "--nproc-per-node",
                   "1"}) +
           train(folder, steps);
  };
  Process first(node(endless), one_thread);
  REQUIRE(first.wait_for_output("Epoch: [1][ 3/32]", limit));
  Process second(node(endless), one_thread);
  REQUIRE(first.wait_for_output("resumed from ", limit));
  REQUIRE(first.wait_for_output("Epoch: [2]", limit));
  first.send_signal(SIGTERM);
  const auto result = first.wait(limit);
  INFO(result.output);
  CHECK(result.status == 75);
  second.send_signal(SIGTERM);
  second.wait(limit);

  const auto starts = events(folder, "start");
  REQUIRE(starts.size() >= 2);
  CHECK(starts[1].at("world_size") == 2);
  CHECK(starts[1].at("resumed_from_step") == events(folder, "stopped").at(0).at("step"));
  std::int64_t last = 0;
  for (const auto& step : events(folder, "train")) {
    CHECK(step.at("step") == last + 1);
    last = step.at("step");
  }
}
