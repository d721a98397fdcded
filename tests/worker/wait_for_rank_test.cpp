// A spare's side of getting its rank, in a process of its own: it changes the environment.
#include "worker/wait_for_rank.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "rendezvous/contract/spare_channel.h"
#include "tests/testing/catch.h"
#include "worker/worker_env.h"

using namespace ddprun;

namespace {

// A child that does `act` with a channel, on whose other end the test is the launcher.
class Spare {
 public:
  explicit Spare(const std::function<int()>& act) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw 0;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::setenv(rendezvous::spare_variable, std::to_string(ends[1]).c_str(), 1);
      ::setenv("RANK", rendezvous::no_rank_yet, 1);
      ::_exit(act());
    }
    ::close(ends[1]);
    launcher_ = ends[0];
    descriptor_ = std::to_string(ends[1]);
  }
  ~Spare() {
    ::close(launcher_);
    if (pid_ > 0) wait();
  }
  Spare(const Spare&) = delete;

  int pid() const { return pid_; }
  const std::string& descriptor() const { return descriptor_; }  // Its end's number, in it.
  bool says_that_it_is_ready() const {
    char byte = 0;
    return ::read(launcher_, &byte, 1) == 1;
  }
  void send(const std::string& message) const {
    CHECK(::send(launcher_, message.data(), message.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(message.size()));
  }
  void hang_up() const { ::shutdown(launcher_, SHUT_RDWR); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int launcher_ = -1;
  std::string descriptor_;
};

// 0: it has this rank; the rest are reasons.
int wait_and_compare(int rank) {
  try {
    if (!worker::is_spare()) return 2;
    worker::wait_for_rank();
    if (worker::is_spare()) return 3;
    return worker::read_worker_env().rank == rank ? 0 : 4;
  } catch (const worker::WorkerEnvError&) {
    return 5;
  }
}

const rendezvous::Environment rank_3 = {{"RANK", "3"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "3"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_PORT", "1234"}};

}  // namespace

TEST_CASE("a spare takes over the environment that it waited for, however it is cut",
          "[worker][spares]") {
  Spare spare([] { return wait_and_compare(3); });
  REQUIRE(spare.says_that_it_is_ready());
  for (const char byte : rendezvous::rank_message(rank_3)) spare.send(std::string(1, byte));
  CHECK(spare.wait() == 0);
}

TEST_CASE("a spare keeps its channel when its environment names it, and closes it otherwise",
          "[worker][spares]") {
  for (const bool named : {false, true}) {
    Spare spare([] {
      const int fd = std::stoi(worker::environment_variable(rendezvous::spare_variable).value());
      const int waited = wait_and_compare(3);
      return waited != 0 ? waited : ::fcntl(fd, F_GETFD) < 0 ? 20 : 21;
    });
    REQUIRE(spare.says_that_it_is_ready());
    rendezvous::Environment environment = rank_3;
    // Its number: as the test has it, which is no launcher with a fixed one.
    if (named) environment.emplace_back(rendezvous::rank_variable, spare.descriptor());
    spare.send(rendezvous::rank_message(environment));
    CHECK(spare.wait() == (named ? 21 : 20));
  }
}

TEST_CASE("a spare whose launcher is gone is told so", "[worker][spares]") {
  for (const std::string& said : {std::string(), rendezvous::rank_message(rank_3).substr(0, 9)}) {
    Spare spare([] { return wait_and_compare(3); });
    REQUIRE(spare.says_that_it_is_ready());
    spare.send(said);
    spare.hang_up();
    CHECK(spare.wait() == 5);
  }
}

TEST_CASE("who reads the environment before there is a rank is told what to call",
          "[worker][spares]") {
  const auto lookup = [](const std::string& name) -> std::optional<std::string> {
    return name == "RANK" ? std::optional<std::string>("spare") : std::nullopt;
  };
  try {
    worker::read_worker_env(lookup);
    FAIL("it was read");
  } catch (const worker::WorkerEnvError& error) {
    CHECK(std::string(error.what()).find("call wait_for_rank()") != std::string::npos);
  }
}

TEST_CASE("a process that is no spare does not wait", "[worker][spares]") {
  REQUIRE_FALSE(worker::is_spare());
  worker::wait_for_rank();
}

TEST_CASE("a spare's death is in the kernel's order of deaths", "[worker][spares]") {
  const int id = ::semget(IPC_PRIVATE, 1, 0600);
  if (id < 0) DDPRUN_SKIP("no semaphores here");
  Spare spare([] {
    const int result = wait_and_compare(3);
    ::kill(::getpid(), SIGKILL);
    return result;
  });
  REQUIRE(spare.says_that_it_is_ready());
  auto environment = rank_3;
  environment.emplace_back(rendezvous::death_marks_variable,
                           rendezvous::death_marks_text({id, {{0, 2}}}));
  spare.send(rendezvous::rank_message(environment));
  const int pid = spare.pid();
  CHECK(spare.wait() == -SIGKILL);
  CHECK(::semctl(id, 0, GETVAL) == 0);
  CHECK(::semctl(id, 0, GETPID) == pid);
  ::semctl(id, 0, IPC_RMID);
}
