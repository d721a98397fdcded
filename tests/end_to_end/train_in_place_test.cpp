// `train --recover in-place` under a launcher that is this test: workers die at named points, the
// others go on in their processes, and the weights are those of a run that nobody disturbed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/unique_fd.h"
#include "tests/end_to_end/recovering_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace {

constexpr auto limit = 120s;

rendezvous::Environment place(int rank, int world, int attempt, std::uint16_t port) {
  const auto text = [](int number) { return std::to_string(number); };
  return {{"RANK", text(rank)},
          {"WORLD_SIZE", text(world)},
          {"LOCAL_RANK", text(rank)},
          {"LOCAL_WORLD_SIZE", text(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", text(port)},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", text(attempt)},
          {"TORCHELASTIC_MAX_RESTARTS", "9"},
          {"TORCHELASTIC_RUN_ID", "in-place"},
          {rendezvous::rank_variable, text(rendezvous::spare_fd)}};
}

// A worker process with its channel.
class Worker {
 public:
  Worker(const std::vector<std::string>& program, const rendezvous::Environment& environment,
         const std::string& output, const std::string& wish) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    channel_ = rendezvous::UniqueFd(ends[0]);
    const rendezvous::UniqueFd other(ends[1]);
    std::vector<char*> argv;
    for (const std::string& word : program) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) {
      ended_ = rendezvous::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::dup2(other.get(), rendezvous::spare_fd);
    ::fcntl(rendezvous::spare_fd, F_SETFD, 0);  // Where it was that one already.
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("DYING_TRAIN", wish.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Worker() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Worker(const Worker&) = delete;

  pollfd until_ended() const { return {ended_.get(), POLLIN, 0}; }
  // The next byte that it says; nothing when it has ended.
  std::optional<char> hear() const {
    pollfd polled{channel_.get(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, static_cast<int>(patience(limit).count())) == 1);
    char byte = 0;
    return ::recv(channel_.get(), &byte, 1, 0) == 1 ? std::optional<char>(byte) : std::nullopt;
  }
  void send(const std::string& message) const {
    CHECK(::send(channel_.get(), message.data(), message.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(message.size()));
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  // Its wait status, once it is known.
  std::optional<int> ended() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    pid_ = -1;
    return status;
  }

 private:
  int pid_ = -1;
  rendezvous::UniqueFd channel_;
  rendezvous::UniqueFd ended_;
};

enum class Replacement { Cold, None };

class Job {
 public:
  Job(const TemporaryFolder& folder, const std::vector<std::string>& program)
      : folder_(folder), program_(program) {}

  // From `world` workers on; the one that `wish` kills is replaced, or left out.
  void run(int world, const std::string& wish, Replacement replacement) {
    begin_attempt();
    for (int rank = 0; rank < world; ++rank) start(rank, world, wish);
    if (wish.empty()) workers_.back()->kill();  // While it meets the others.
    while (const auto dead = wait_for_a_death()) {
      workers_.erase(workers_.begin() + *dead);
      for (const auto& worker : workers_) worker->send(rendezvous::attempt_over_message("a death"));
      for (const auto& worker : workers_) CHECK(worker->hear() == rendezvous::gives_rank_back);
      ++attempt_;
      if (replacement == Replacement::None) --world;
      begin_attempt();
      // Where a rank is kept for the new one, it is that of the dead.
      for (int rank = 0, kept = 0; rank < world; ++rank) {
        if (replacement == Replacement::Cold && rank == *dead) continue;
        const auto& worker = workers_[static_cast<std::size_t>(kept++)];
        worker->send(rendezvous::rank_message(place(rank, world, attempt_, store_->port())));
        CHECK(worker->hear() == rendezvous::can_park);
      }
      if (replacement == Replacement::Cold) {
        start(*dead, world, "");
        std::rotate(workers_.begin() + *dead, workers_.end() - 1, workers_.end());
      }
    }
  }
  int attempts() const { return attempt_ + 1; }
  std::string output() const { return content_of(folder_ / "output"); }

 private:
  void begin_attempt() {
    store_.reset();  // An empty one for each attempt.
    store_ = std::make_unique<rendezvous::HostedStore>("127.0.0.1", 0);
  }
  void start(int rank, int world, const std::string& wish) {
    workers_.push_back(std::make_unique<Worker>(
        program_, place(rank, world, attempt_, store_->port()), folder_ / "output", wish));
    CHECK(workers_.back()->hear() == rendezvous::can_park);
  }
  // The index of one that was killed; nothing when all have ended well.
  std::optional<std::ptrdiff_t> wait_for_a_death() {
    const auto end = std::chrono::steady_clock::now() + patience(limit);
    for (std::set<std::size_t> done; done.size() < workers_.size();) {
      INFO(output());
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::vector<pollfd> polled;
      for (const auto& worker : workers_) polled.push_back(worker->until_ended());
      for (std::size_t i : done) polled[i].fd = -1;
      ::poll(polled.data(), polled.size(), 1000);
      for (std::size_t i = 0; i < workers_.size(); ++i) {
        const auto status = workers_[i]->ended();
        if (!status) continue;
        if (WIFSIGNALED(*status)) return static_cast<std::ptrdiff_t>(i);
        REQUIRE(WEXITSTATUS(*status) == 0);
        done.insert(i);
      }
    }
    return std::nullopt;
  }

  const TemporaryFolder& folder_;
  std::vector<std::string> program_;
  int attempt_ = 0;
  std::unique_ptr<rendezvous::HostedStore> store_;
  std::vector<std::unique_ptr<Worker>> workers_;  // By rank.
};

// Of each step what was logged of it, and of each validation.
std::map<std::string, nlohmann::json> figures(const std::string& metrics) {
  std::map<std::string, nlohmann::json> found;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line);
    std::string kind = event.at("event");
    if (kind != "train" && kind != "validation") continue;
    if (event.contains("averaged")) kind += " of the average";
    const nlohmann::json of_step = {event.at("loss"), event.at("prec1")};
    const auto [place, fresh] = found.emplace(kind + " " + event.at("step").dump(), of_step);
    INFO(line);
    // One that rank 0 has told of before it died may be done again, and is the same then.
    CHECK((fresh || place->second == of_step));
  }
  return found;
}

// Epochs of 5 steps, each with its validation.
std::vector<std::string> training(const TemporaryFolder& folder,
                                  const std::vector<std::string>& more) {
  return std::vector<std::string>{binary("train"), "--checkpoint-dir", folder / "saved",
                                  "--metrics", folder / "metrics"} +
         words_of(
             "--dataset synthetic --image-size 16 --synthetic-images 200 --synthetic-classes 10 "
             "--model resnet20 --batch-size 10 --shards 4 --seed 3 --device cpu --steps 7 "
             "--print-freq 1 --checkpoint-every 3") +
         more;
}

// The same by a program that can be told when to die.
std::vector<std::string> dying(const TemporaryFolder& folder,
                               const std::vector<std::string>& more) {
  std::vector<std::string> program = training(folder, more);
  program[0] = DDPRUN_DYING_TRAIN;
  return program;
}

// A run of one worker that nobody disturbs.
struct Golden {
  explicit Golden(const std::vector<std::string>& more) {
    TemporaryFolder folder;
    const auto result = testing::run(training(folder, more), limit, one_thread);
    INFO(result.output);
    REQUIRE(result.status == 0);
    tensors = newest_tensors(folder / "saved");
    told = figures(folder / "metrics");
    REQUIRE(told.size() >= 8);
  }
  std::string tensors;
  std::map<std::string, nlohmann::json> told;
};

void check_golden(const TemporaryFolder& folder, const Golden& golden) {
  const bool same_tensors = newest_tensors(folder / "saved") == golden.tensors;
  CHECK(same_tensors);
  const auto told = figures(folder / "metrics");
  for (const auto& [step, of_step] : told) {
    INFO(step);
    CHECK(golden.told.contains(step));
    if (golden.told.contains(step)) CHECK(of_step == golden.told.at(step));
  }
  // The one that rank 0 was thrown out of, while another rank had applied it.
  CHECK(told.size() + 1 >= golden.told.size());
}

nlohmann::ordered_json metadata_of(const std::string& file) {
  std::uint64_t header_bytes = 0;
  REQUIRE(file.size() > sizeof header_bytes);
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  return nlohmann::ordered_json::parse(file.substr(sizeof header_bytes, header_bytes));
}

// As if another best had been there before, and this one had not come to the disk.
void make_older_best(const std::string& path) {
  const std::string file = content_of(path);
  auto header = metadata_of(file);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  header["__metadata__"]["best_prec1"] = "0";
  header["__metadata__"].erase("xxh64");
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text << file.substr(sizeof header_bytes + header_bytes);
}

}  // namespace

TEST_CASE("16.3: what memory tells of a best model that was not written does not count",
          "[recovery]") {
  struct Way {
    std::string recover;
    std::vector<std::string> memory_of_rank_0;
    std::string told;
  };
  const std::vector<std::string> memory = {"--restart-memory", "64M"};
  for (const Way& way : {Way{"in-place", memory, "goes on in place from step 2"},
                         Way{"restart", memory, "resumed from memory: "},
                         Way{"restart", {}, "resumed from memory of the node of rank 1: "}}) {
    TemporaryFolder folder;
    const std::string best = folder / "saved/best.safetensors";
    const auto with = [](std::vector<std::string> program, const std::string& option,
                         const std::string& value) {
      *(std::find(program.begin(), program.end(), option) + 1) = value;
      return program;
    };
    const auto before =
        testing::run(with(training(folder, {"--lr", "0.03"}), "--steps", "20"), limit, one_thread);
    INFO(before.output);
    REQUIRE(before.status == 0);

    // So fast that it forgets what it has learned.
    auto forgetful =
        dying(folder, {"--snapshot-every", "1", "--lr", "2", "--recover", way.recover});
    forgetful = with(with(forgetful, "--steps", "25"), "--metrics", folder / "metrics_{rank}");
    const std::uint16_t port = free_port();
    const std::vector<std::string> options = {"--nproc-per-node", "1", "--max-restarts", "1"};
    const auto variables = with_wish("0 1 halt:data 22");
    Process first(launch_node(0, port, options + way.memory_of_rank_0, forgetful), variables);
    Process second(launch_node(1, port, options + memory, forgetful), variables);
    REQUIRE(first.wait_for_output("[5][2/5]", limit));
    REQUIRE(second.wait_for_output(" at step 20", limit));
    make_older_best(best);  // Nobody looks at it before the next attempt.
    ::kill(pids_of(second.output(), 0).at(1), SIGKILL);

    const auto one = first.wait(limit), other = second.wait(limit);
    INFO(one.output << other.output);
    REQUIRE(one.status == 0);
    REQUIRE(other.status == 0);
    CHECK(contains(one.output, way.told));
    const auto top1 = figures(folder / "metrics_0").at("validation 25")[1];
    REQUIRE(top1 < figures(folder / "metrics").at("validation 20")[1]);
    // On all ranks, whoever will be rank 0 in the next attempt.
    for (const std::string rank : {"0", "1"}) {
      CHECK(contains(content_of(folder / ("metrics_" + rank)),
                     "\"best_prec1\":" + top1.dump() + ","));
    }
    CHECK(metadata_of(content_of(best))["__metadata__"]["step"] == "25");
  }
}

TEST_CASE("16.3: whatever a worker dies in, the others redo the step in their processes",
          "[recovery]") {
  const std::vector<std::string> more = {"--recover", "in-place", "--ema", "0.9"};
  const Golden golden(more);
  struct Death {
    const char* phase;
    int step;
    int rank;
  };
  for (const Death& death : std::vector<Death>{{"data", 2, 1},
                                               {"forward", 2, 0},
                                               {"backward", 2, 1},
                                               {"optimizer", 1, 1},
                                               {"optimizer", 1, 0},
                                               {"report", 3, 1},
                                               {"checkpoint", 3, 0},
                                               {"validation", 5, 1},
                                               {"validation", 5, 0},
                                               {"data", 1, 1}}) {
    TemporaryFolder folder;
    Job job(folder, dying(folder, more));
    INFO(death.phase << " of step " << death.step << ", rank " << death.rank);
    job.run(
        2, "0 " + std::to_string(death.rank) + " " + death.phase + " " + std::to_string(death.step),
        Replacement::Cold);
    INFO(job.output());
    REQUIRE(job.attempts() == 2);
    const auto before = pids_of(job.output(), 0), after = pids_of(job.output(), 1);
    REQUIRE(before.size() == 2);
    REQUIRE(after.size() == 2);
    CHECK(after.at(1 - death.rank) == before.at(1 - death.rank));
    CHECK(after.at(death.rank) != before.at(death.rank));
    CHECK(contains(job.output(), "goes on in place from step"));
    check_golden(folder, golden);
  }
}

TEST_CASE("16.3: those that are left go on alone, and rank 0 may be another one", "[recovery]") {
  const std::vector<std::string> more = {"--recover", "in-place"};
  const Golden golden(more);
  for (const int victim : {0, 1, 2}) {
    TemporaryFolder folder;
    Job job(folder, dying(folder, more));
    job.run(3, "0 " + std::to_string(victim) + " backward 2", Replacement::None);
    INFO(job.output());
    REQUIRE(job.attempts() == 2);
    const auto before = pids_of(job.output(), 0), after = pids_of(job.output(), 1);
    REQUIRE(before.size() == 3);
    REQUIRE(after.size() == 2);
    CHECK(after.at(0) == before.at(victim == 0 ? 1 : 0));
    CHECK(after.at(1) == before.at(victim == 2 ? 1 : 2));
    check_golden(folder, golden);
  }
}

TEST_CASE("16.3: a worker that dies before it was met costs the others only that attempt",
          "[recovery]") {
  const std::vector<std::string> more = {"--recover", "in-place"};
  const Golden golden(more);
  TemporaryFolder folder;
  Job job(folder, dying(folder, more));
  job.run(3, "", Replacement::Cold);
  INFO(job.output());
  REQUIRE(job.attempts() == 2);
  REQUIRE(pids_of(job.output(), 1).size() == 3);
  check_golden(folder, golden);
}

TEST_CASE("16.3: a world of one is left by the next death, and goes on alone", "[recovery]") {
  const std::vector<std::string> more = {"--recover", "in-place"};
  const Golden golden(more);
  TemporaryFolder folder;
  Job job(folder, dying(folder, more));
  job.run(2, "0 0 optimizer 4", Replacement::None);
  INFO(job.output());
  CHECK(pids_of(job.output(), 1).at(0) == pids_of(job.output(), 0).at(1));
  check_golden(folder, golden);
}
