// A worker that the launcher gives several ranks, and the test is the launcher: at each point in
// the life of an attempt the word that it is over must be heard, and end what the worker is in.
#include "worker/membership.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "worker/error_file.h"
#include "worker/membership_state.h"
#include "worker/worker_env.h"

using namespace ddprun;
using namespace ddprun::worker;
using Phase = MembershipState::Phase;
using testing::patience;
using namespace std::chrono_literals;

namespace {

const rendezvous::Environment over = {{rendezvous::attempt_over_variable, "rank 2 was killed"}};
const rendezvous::Environment rank_1 = {{"RANK", "1"},       {"WORLD_SIZE", "2"},
                                        {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", ""}, {"MASTER_PORT", "1234"}};

std::string bytes_of_message(const rendezvous::Environment& environment) {
  return rendezvous::rank_message(environment);
}

// This process as a worker with a channel, on whose other end the test is the launcher. What it
// leaves in the environment goes with it.
class Channel {
 public:
  Channel() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw 0;
    launcher_ = rendezvous::UniqueFd(ends[0]);
    ::setenv(rendezvous::rank_variable, std::to_string(ends[1]).c_str(), 1);
  }
  ~Channel() {
    ::unsetenv(rendezvous::rank_variable);
    for (const auto& [name, value] : rank_1) ::unsetenv(name.c_str());
  }
  // Also by threads beside the test's own, of which Catch2 can know nothing: their futures tell.
  void send(const std::string& bytes) const {
    const ssize_t sent = ::send(launcher_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("not sent");
  }
  void send(const rendezvous::Environment& environment) const {
    send(bytes_of_message(environment));
  }
  char hear() const {
    char byte = 0;
    return ::read(launcher_.get(), &byte, 1) == 1 ? byte : '\0';
  }
  void hang_up() { launcher_.reset(); }

 private:
  rendezvous::UniqueFd launcher_;
};

template <class Action>
std::string what_throws(const Action& action) {
  try {
    action();
  } catch (const CommunicatorError& error) {
    return error.what();
  }
  return "nothing";
}

Membership with_patience() { return Membership({.peer_word_limit = patience(20s)}); }

// As the launcher does once it is asked for; what it was asked.
std::future<char> give_rank_1(Channel& channel) {
  return std::async(std::launch::async, [&channel] {
    const char said = channel.hear();
    channel.send(rank_1);
    return said;
  });
}

}  // namespace

TEST_CASE("however the launcher's words are cut, they mean the same", "[worker][membership]") {
  const std::string word = bytes_of_message(over), rank = bytes_of_message(rank_1);
  for (std::size_t cut = 0; cut <= word.size(); ++cut) {
    MembershipState state;
    state.hear(word.substr(0, cut));
    CHECK((state.phase() == Phase::Over) == (cut == word.size()));
    state.hear(word.substr(cut));
    REQUIRE(state.phase() == Phase::Over);
    CHECK(state.why() == "rank 2 was killed");
  }
  for (std::size_t cut = 0; cut <= rank.size(); ++cut) {
    MembershipState state;
    state.hear(word);
    state.park();
    state.hear(rank.substr(0, cut));
    state.hear(rank.substr(cut) + word);  // And the next attempt is over before it was begun.
    REQUIRE(state.phase() == Phase::Given);
    CHECK(state.take_rank() == rank_1);
    CHECK(state.phase() == Phase::Over);
  }
}

TEST_CASE("every order of words, parking and the connection's end comes to one phase",
          "[worker][membership]") {
  enum Event { Over, Rank, Park, HangUp, Take };
  const auto apply = [](MembershipState& state, Event event) {
    switch (event) {
      case Over:
        return state.hear(bytes_of_message(over));
      case Rank:
        return state.hear(bytes_of_message(rank_1));
      case HangUp:
        return state.hang_up();
      case Park:
        if (state.phase() == Phase::Over) return state.park();
        CHECK_THROWS_AS(state.park(), std::logic_error);
        return;
      case Take:
        if (state.phase() != Phase::Given) {
          CHECK_THROWS_AS(state.take_rank(), std::logic_error);
        } else {
          CHECK(state.take_rank() == rank_1);
        }
    }
  };
  // The table of the head of membership_state.h, as a second author would write it.
  bool over_since_given = false;
  const auto expected = [&](Phase phase, Event event, bool hung_up) {
    if (phase == Phase::Given && event == Over) over_since_given = true;
    if (event == HangUp) return phase == Phase::Given ? Phase::Given : Phase::Gone;
    if (phase == Phase::Working && event == Over) return Phase::Over;
    if (phase == Phase::Over && event == Park) return Phase::Parked;
    if (phase == Phase::Parked && event == Rank) return Phase::Given;
    if (phase == Phase::Given && event == Take) {
      const bool over = std::exchange(over_since_given, false);
      return hung_up ? Phase::Gone : over ? Phase::Over : Phase::Working;
    }
    return phase;
  };
  constexpr int kinds = 5, length = 6;
  for (int number = 0; number < 15'625; ++number) {  // kinds to the power of length.
    MembershipState state;
    Phase phase = Phase::Working;
    bool hung_up = false;
    over_since_given = false;
    for (int i = 0, rest = number; i < length; ++i, rest /= kinds) {
      const auto event = static_cast<Event>(rest % kinds);
      phase = expected(phase, event, hung_up);
      hung_up = hung_up || event == HangUp;
      apply(state, event);
      REQUIRE(state.phase() == phase);
    }
  }
}

TEST_CASE("an attempt that was over before its rank was taken says nothing of the next one",
          "[worker][membership]") {
  MembershipState state;
  const auto next = [&] {
    state.park();
    state.hear(bytes_of_message(rank_1));
  };
  state.hear(bytes_of_message(over));
  state.hear(bytes_of_message({{rendezvous::attempt_over_variable, "said again"}}));
  CHECK(state.why() == "rank 2 was killed");
  next();
  state.hear(bytes_of_message(over));
  state.take_rank();
  REQUIRE(state.phase() == Phase::Over);

  next();
  state.take_rank();
  CHECK(state.phase() == Phase::Working);
}

TEST_CASE("a launcher that says something endless is as good as gone", "[worker][membership]") {
  MembershipState state;
  for (int i = 0; i < 64 && state.phase() == Phase::Working; ++i) {
    state.hear(std::string(65'536, 'x'));
  }
  CHECK(state.phase() == Phase::Gone);
}

TEST_CASE("without a launcher that listens a worker is what it always was",
          "[worker][membership]") {
  Membership members;
  CHECK_FALSE(members.offered());
  CHECK(members.options().interrupt_fd == -1);
  CHECK_FALSE(members.next_rank());
  CHECK_FALSE(members.job_is_over());
  // A descriptor that is something else by now.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  for (const int fd :
       {ends[0], ends[1], ::socket(AF_INET, SOCK_STREAM, 0), ::socket(AF_UNIX, SOCK_DGRAM, 0)}) {
    ::setenv(rendezvous::rank_variable, std::to_string(fd).c_str(), 1);
    CHECK_FALSE(Membership().offered());
    ::unsetenv(rendezvous::rank_variable);
    CHECK(::close(fd) == 0);  // And was left open.
  }
}

TEST_CASE("a worker's signals are not taken by the thread that listens", "[worker][membership]") {
  const auto threads = [] {
    std::set<std::string> folders;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      folders.insert(entry.path());
    }
    return folders;
  };
  Channel channel;
  const std::set<std::string> before = threads();

  Membership members = with_patience();
  channel.send(over);
  REQUIRE(members.attempt_is_over());  // It runs: a thread begins with all of them blocked.

  int listening = 0;
  for (const std::string& thread : threads()) {
    if (before.contains(thread)) continue;
    ++listening;
    const std::string status = testing::content_of(thread + "/status");
    const std::size_t at = status.find("SigBlk:\t");
    REQUIRE(at != std::string::npos);
    const auto blocked = std::stoull(status.substr(at + 8), nullptr, 16);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) CHECK((blocked >> (signal - 1) & 1) == 1);
  }
  CHECK(listening == 1);
}

TEST_CASE("children of a worker get nothing of its channel", "[worker][membership]") {
  Channel channel;
  const int number = std::stoi(std::getenv(rendezvous::rank_variable));
  REQUIRE(::fcntl(number, F_SETFD, 0) == 0);  // As it is when the launcher has started a worker.

  const Membership members = with_patience();

  CHECK(::fcntl(number, F_GETFD) == FD_CLOEXEC);
  CHECK(std::getenv(rendezvous::rank_variable) == nullptr);
}

TEST_CASE("who is told to leave its peers is thrown out of a collective, once",
          "[worker][membership]") {
  CHECK(Membership().abort_fd() == -1);
  Channel channel;
  Membership members = with_patience();
  const auto alone = make_cpu_communicator(WorkerEnv{});
  const auto guard = members.guard(*alone);
  pollfd told{members.abort_fd(), POLLIN, 0};

  REQUIRE(::eventfd_write(members.abort_fd(), 1) == 0);
  const auto end = std::chrono::steady_clock::now() + patience(20s);
  while (::poll(&told, 1, 0) == 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  CHECK(::poll(&told, 1, 0) == 0);
  std::string why = "nothing";
  while (why == "nothing" && std::chrono::steady_clock::now() < end) {
    why = what_throws([&] { alone->barrier(); });
  }
  CHECK(testing::contains(why, "this worker has left the others"));
}

TEST_CASE("who waits for peers is interrupted while an attempt is over, and not in the next one",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  REQUIRE(channel.hear() == rendezvous::can_park);
  pollfd interrupt{members.options().interrupt_fd, POLLIN, 0};
  CHECK(::poll(&interrupt, 1, 0) == 0);
  channel.send(over);
  REQUIRE(members.attempt_is_over());
  CHECK(::poll(&interrupt, 1, 0) == 1);

  auto launcher = give_rank_1(channel);
  REQUIRE(members.next_rank());
  CHECK(launcher.get() == rendezvous::gives_rank_back);
  CHECK(::poll(&interrupt, 1, 0) == 0);
  // The launcher's end is not the job's for a process that has a rank.
  channel.hang_up();
  CHECK_FALSE(members.attempt_is_over());
  CHECK_FALSE(members.job_is_over());
}

TEST_CASE("a second membership takes nobody else's descriptor", "[worker][membership]") {
  Channel channel;
  const int number = std::stoi(std::getenv(rendezvous::rank_variable));
  {
    Membership first = with_patience();
    REQUIRE(first.offered());
    REQUIRE(channel.hear() == rendezvous::can_park);
    channel.send(over);
    auto launcher = std::async(std::launch::async, [&] {
      channel.hear();
      auto environment = rank_1;
      environment.emplace_back(rendezvous::rank_variable, std::to_string(number));
      channel.send(environment);
    });
    REQUIRE(first.next_rank());
    launcher.get();
  }
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const rendezvous::UniqueFd other(ends[0] == number ? ends[1] : ends[0]);
  const rendezvous::UniqueFd made(ends[0] == number ? ends[0] : ends[1]);
  if (made.get() != number) REQUIRE(::dup2(made.get(), number) == number);

  CHECK_FALSE(Membership().offered());

  char byte = 0;
  CHECK(::recv(other.get(), &byte, 1, MSG_DONTWAIT) < 0);  // Nothing was said to it.
  CHECK(::send(other.get(), &byte, 1, MSG_NOSIGNAL) == 1);
  CHECK(::recv(number, &byte, 1, MSG_DONTWAIT) == 1);  // And it is open.
  if (made.get() != number) ::close(number);
}

TEST_CASE("a guard that takes another one's place guards its own communicator",
          "[worker][membership]") {
  for (const bool same : {false, true}) {
    Channel channel;
    Membership members = with_patience();
    const auto first = make_cpu_communicator(WorkerEnv{});
    const auto second = make_cpu_communicator(WorkerEnv{});
    Communicator& latest = same ? *first : *second;
    auto guard = members.guard(*first);
    guard = members.guard(latest);
    channel.send(over);
    REQUIRE(members.attempt_is_over());
    CHECK_THROWS_AS(latest.barrier(), CommunicatorError);
    if (!same) first->barrier();
  }
}

TEST_CASE("a worker with a rank of the next attempt dies into that one's error file",
          "[worker][membership][error_file]") {
  const testing::TemporaryFolder folder;
  for (const bool installed : {true, false}) {
    const std::string before = folder / "before", after = folder / "after";
    const pid_t child = ::fork();  // The place of the file is one per process.
    if (child == 0) {
      ::alarm(static_cast<unsigned>(patience(30s).count() / 1000));
      WorkerEnv env;
      env.error_file = before;
      if (installed) install_error_handlers(env);
      Channel channel;
      Membership members = with_patience();
      channel.send(over);
      auto launcher = std::async(std::launch::async, [&] {
        channel.hear();  // That it can park.
        if (channel.hear() != rendezvous::gives_rank_back) return;
        rendezvous::Environment next = rank_1;
        next.emplace_back("TORCHELASTIC_ERROR_FILE", after);
        channel.send(next);
      });
      const bool given = members.next_rank();
      launcher.get();
      record_error("later");
      ::_exit(given ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK_FALSE(std::filesystem::exists(before));
    CHECK(std::filesystem::exists(after) == installed);
    if (installed) CHECK(testing::contains(testing::content_of(after), "later"));
    std::filesystem::remove(after);
  }
}

TEST_CASE("a membership that a forked child destroys still hears its launcher",
          "[worker][membership]") {
  Channel channel;
  auto members = std::make_unique<Membership>(MembershipOptions{.peer_word_limit = patience(20s)});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(static_cast<unsigned>(patience(20s).count() / 1000));  // Or it may wait for a thread.
    members.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  channel.send(over);
  CHECK(members->attempt_is_over());
}

TEST_CASE("a guard that a forked child destroys does not wait for its parent's lock",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  const auto alone = make_cpu_communicator(WorkerEnv{});
  std::optional<Membership::Guard> guard = members.guard(*alone);
  int status = -1;
  // Asked while the membership is locked, and the child has its copy of that.
  const auto fork_and_give_up = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(static_cast<unsigned>(patience(20s).count() / 1000));
      guard.reset();
      ::_exit(0);
    }
    ::waitpid(child, &status, 0);
    return true;
  };
  CHECK_FALSE(members.attempt_is_over(fork_and_give_up));
  CHECK(status == 0);
}

TEST_CASE("a word that comes during a collective ends it, and a rank follows",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  REQUIRE(members.offered());
  REQUIRE(channel.hear() == rendezvous::can_park);
  std::atomic<bool> inside = false;
  const auto errors = spawn({.world = 2}, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {  // Its peer never calls.
      while (!inside) std::this_thread::yield();
      channel.send(over);
      CHECK(members.attempt_is_over());
      return;
    }
    const auto guard = members.guard(communicator);
    inside = true;
    communicator.barrier();
  });
  INFO(errors.at(0));
  CHECK(errors.at(0).find("the attempt is over: rank 2 was killed") != std::string::npos);
  auto launcher = give_rank_1(channel);
  REQUIRE(members.next_rank());
  CHECK(launcher.get() == rendezvous::gives_rank_back);
  CHECK(read_worker_env().rank == 1);
  CHECK(channel.hear() == rendezvous::can_park);
}

TEST_CASE("a word that came before the communicator was guarded ends it", "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  channel.send(over);
  REQUIRE(members.attempt_is_over());
  const auto errors = spawn({.world = 2}, [&](Communicator& communicator) {
    std::optional<Membership::Guard> guard;
    if (communicator.rank() == 0) guard = members.guard(communicator);
    communicator.barrier();
  });
  CHECK(errors.at(0).find("the attempt is over") != std::string::npos);
}

TEST_CASE("a word that comes while a world of one trains ends its next call",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  const auto alone = make_cpu_communicator(WorkerEnv{});
  const auto guard = members.guard(*alone);
  alone->barrier();
  channel.send(over);
  REQUIRE(members.attempt_is_over());
  CHECK_THROWS_AS(alone->barrier(), CommunicatorError);
}

TEST_CASE("a word that comes while peers are met through the store ends that",
          "[worker][membership]") {
  auto store = std::make_unique<rendezvous::HostedStore>("127.0.0.1", 0);
  const std::uint16_t port = store->port();
  for (const bool store_is_there : {true, false}) {
    if (!store_is_there) store.reset();
    Channel channel;
    Membership members = with_patience();
    WorkerEnv env;
    env.rank = 0;
    env.world_size = 2;
    env.use_agent_store = true;
    env.master_port = port;
    auto word = std::async(std::launch::async, [&] { channel.send(over); });
    // For an hour nobody would come.
    const std::string what =
        what_throws([&] { make_cpu_communicator(env, members.options({.connect_timeout = 1h})); });
    CHECK(what.find("the wait was interrupted") != what.npos);
    word.get();
    CHECK(members.attempt_is_over());
  }
}

TEST_CASE("a word that comes while a peer is waited for that does not call ends that",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  auto board = MappedExchange::create(2);
  // Rank 1 gives its address and never calls.
  auto silent = std::async(std::launch::async, [&] {
    MappedExchange exchange(board, 1);
    const auto deadline = std::chrono::steady_clock::now() + patience(20s);
    PeerAddress address;
    address.world_size = 2;
    address.host = "elsewhere";
    address.ip = "127.0.0.1";
    address.secret = "secret";
    exchange.all_gather(to_text(address), deadline);
    exchange.all_gather("00", deadline);
    channel.send(over);
  });
  CpuCommunicatorOptions options;
  options.common = members.options({.connect_timeout = 1h});
  MappedExchange exchange(board, 0);
  CHECK(what_throws([&] { connect_cpu_communicator(0, 2, 0, exchange, options); }) ==
        "rank 0 stopped connecting to its peers: it was interrupted");
  silent.get();
  CHECK(members.attempt_is_over());
}

TEST_CASE("a worker whose launcher says nothing has failed by itself", "[worker][membership]") {
  Channel channel;
  Membership members({.peer_word_limit = 1ms});
  CHECK_FALSE(members.next_rank());
  CHECK_FALSE(members.next_rank([] { return false; }));
  CHECK_FALSE(members.job_is_over());
}

TEST_CASE("16.3: who lost a peer waits for the word as long as the launcher may take to know",
          "[worker][membership]") {
  Channel channel;
  ::setenv(rendezvous::peer_word_limit_variable, "1", 1);
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(Membership().attempt_is_over());
  ::unsetenv(rendezvous::peer_word_limit_variable);
  // Not the 20 s of a launcher that says nothing of it.
  CHECK(std::chrono::steady_clock::now() - began < 20s);
}

TEST_CASE("a parked worker that nobody needs is told so", "[worker][membership]") {
  for (const bool in_the_middle : {false, true}) {
    Channel channel;
    Membership members = with_patience();
    REQUIRE(channel.hear() == rendezvous::can_park);
    channel.send(over);
    auto launcher = std::async(std::launch::async, [&] {
      const char said = channel.hear();
      if (in_the_middle) channel.send(bytes_of_message(rank_1).substr(0, 9));
      channel.hang_up();
      return said;
    });
    CHECK_FALSE(members.next_rank());
    CHECK(members.job_is_over());
    CHECK(launcher.get() == rendezvous::gives_rank_back);
  }
}

TEST_CASE("16.3: who waits for a word or a rank may give up, as on a signal",
          "[worker][membership]") {
  for (const bool parked : {false, true}) {
    Channel channel;
    Membership members({.peer_word_limit = 1h});
    REQUIRE(channel.hear() == rendezvous::can_park);
    if (parked) channel.send(over);
    int asked = 0;
    CHECK_FALSE(members.next_rank([&] { return ++asked > 2; }));
    CHECK(asked > 2);
    CHECK_FALSE(members.job_is_over());
    if (parked) CHECK(channel.hear() == rendezvous::gives_rank_back);
  }
}

TEST_CASE("16.3: an attempt that is over before its rank was taken is left at once",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  REQUIRE(channel.hear() == rendezvous::can_park);
  channel.send(over);
  auto launcher = std::async(std::launch::async, [&] {
    const char said = channel.hear();
    channel.send(bytes_of_message(rank_1) + bytes_of_message(over));
    return said;
  });
  REQUIRE(members.next_rank());
  CHECK(launcher.get() == rendezvous::gives_rank_back);

  rendezvous::HostedStore store("127.0.0.1", 0);
  WorkerEnv env;
  env.rank = 0;
  env.world_size = 2;  // Nobody else comes.
  env.use_agent_store = true;
  env.master_port = store.port();
  const std::string what =
      what_throws([&] { make_cpu_communicator(env, members.options({.connect_timeout = 1h})); });
  CHECK(what.find("the wait was interrupted") != what.npos);
  CHECK(members.attempt_is_over());
}

TEST_CASE("attempt after attempt is left, also one that nobody was met in",
          "[worker][membership]") {
  Channel channel;
  Membership members = with_patience();
  REQUIRE(channel.hear() == rendezvous::can_park);
  for (int attempt = 0; attempt < 3; ++attempt) {
    channel.send(over);
    auto launcher = give_rank_1(channel);
    REQUIRE(members.next_rank());
    CHECK(launcher.get() == rendezvous::gives_rank_back);
    CHECK(channel.hear() == rendezvous::can_park);
    // What was over is none of the next one's business.
    const auto alone = make_cpu_communicator(WorkerEnv{}, members.options());
    const auto guard = members.guard(*alone);
    alone->barrier();
  }
}

TEST_CASE(
    "how long the launcher may take to know counts where it is a number, and nobody knows better",
    "[worker][membership]") {
  Channel channel;
  const bool own_limit = GENERATE(true, false);
  // Of an own limit the launcher's is not waited for; without one, "soon" and none mean 20 s.
  const char* const told = own_limit ? "3600000" : GENERATE("soon", "0", "-5");
  ::setenv(rendezvous::peer_word_limit_variable, told, 1);
  Membership members(own_limit ? MembershipOptions{.peer_word_limit = 1ms} : MembershipOptions{});
  ::unsetenv(rendezvous::peer_word_limit_variable);
  bool asked = false;
  const bool is_over = members.attempt_is_over([&] {
    if (!std::exchange(asked, true) && !own_limit) channel.send(over);
    return false;
  });
  CHECK(is_over == !own_limit);
}
