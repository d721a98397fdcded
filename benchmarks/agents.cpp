// Many agents of one job, for scripts/bench agents:
//
//   agents --agents N
//
// Node 0 is a process of its own; the other N - 1 agents are one more, with a connection, a
// listening port and a vote each: the launcher's own Membership, without workers. So what the
// agents of a real job do on N machines is done by one thread here, and a successor of node 0
// shares it with all of them.
//
// 1. All join at once: milliseconds until the last has been told to start its workers.
// 2. Node 0 is killed: until the first other one coordinates the job, until the last agent has been
//    welcomed by it, and until the last has been told to start the next attempt's workers.
// Prints one line of JSON.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/membership/membership.h"
#include "rendezvous/random_id.h"

namespace {

using namespace ddprun::launcher;
using namespace ddprun::rendezvous;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{120};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "agents: %s\n", what.c_str());
  std::exit(1);
}

struct Counts {
  int welcomed = 0, coordinate = 0;
  std::vector<int> started = std::vector<int>(16);  // By attempt.
};

// An agent whose workers start and stop at once.
class Agent {
 public:
  Agent(asio::io_context& io, const LaunchOptions& options, Counts& counts,
        std::function<void(int port)> on_opened)
      : membership_(io, options, "agent",
                    {.on_worker_key = [](UniqueFd) {},
                     .on_endpoint_opened = [on_opened = std::move(on_opened)](
                                               const std::string&, int port) { on_opened(port); },
                     .on_endpoint_closed = [] {},
                     .on_message = [this](const ControlMessage& message) { hear(message); },
                     .on_unreachable = [](const std::string& why) { die(why); },
                     .on_lost = [](const std::string& why, bool) { die("lost: " + why); }}),
        counts_(counts) {
    asio::co_spawn(
        io, [this] { return membership_.join(); },
        [](const std::exception_ptr& thrown) {
          if (thrown) std::rethrow_exception(thrown);
        });
  }

 private:
  void hear(const ControlMessage& message) {
    if (std::holds_alternative<Welcome>(message)) ++counts_.welcomed;
    if (const auto* round = std::get_if<RoundStart>(&message)) {
      ++counts_.started.at(static_cast<std::size_t>(round->attempt));
      membership_.send(Started{round->attempt});
    }
    if (const auto* stop = std::get_if<Stop>(&message)) membership_.send(Reaped{stop->attempt});
    if (const auto* finish = std::get_if<Finish>(&message)) die("the job ended: " + finish->why);
  }

  Membership membership_;
  Counts& counts_;
};

LaunchOptions options_for(int agents, const std::string& run_id) {
  LaunchOptions options;
  options.nnodes_min = 1;
  options.nnodes_max = agents;
  options.backend = RendezvousBackend::C10d;
  options.max_restarts = 10;
  options.run_id = run_id;
  options.is_host = false;
  return options;
}

// Writes its port, once it listens, and then one byte when it has been told to start its workers.
[[noreturn]] void be_node_0(LaunchOptions options, int tell) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context io;
  Counts counts;
  options.is_host = true;
  options.endpoint_port = 0;
  Agent agent(io, options, counts, [tell](int port) {
    const auto number = static_cast<std::uint16_t>(port);
    if (::write(tell, &number, sizeof number) != sizeof number) std::_Exit(1);
  });
  io.run();
  std::_Exit(1);
}

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double ms_until(asio::io_context& io, Clock::time_point begin, const std::string& what,
                const std::function<bool()>& done) {
  while (!done()) {
    if (Clock::now() - begin > patience) die(what + ": not within the limit");
    io.run_one_for(std::chrono::milliseconds(100));
  }
  return ms_since(begin);
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("agents"));  // stdout is the result's.
  int agents = 500;
  CLI::App app("Many agents of one job");
  app.add_option("--agents", agents, "All of them, node 0 included")->check(CLI::Range(4, 4'000));
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  LaunchOptions options = options_for(agents, random_id());
  int told[2];
  if (::pipe(told) != 0) die("no pipe");
  const pid_t node_0 = ::fork();
  if (node_0 < 0) die("no process");
  if (node_0 == 0) be_node_0(options, told[1]);
  ::close(told[1]);
  if (::read(told[0], &options.endpoint_port, 2) != 2) die("node 0 does not listen");

  asio::io_context io;
  Counts counts;
  Clock::time_point killed;
  double leads_ms = 0;
  std::vector<std::unique_ptr<Agent>> others;
  const auto begin = Clock::now();
  for (int i = 1; i < agents; ++i) {
    others.push_back(std::make_unique<Agent>(io, options, counts, [&](int) {
      ++counts.coordinate;
      leads_ms = ms_since(killed);
    }));
  }
  const double join_ms =
      ms_until(io, begin, "joining", [&] { return counts.started[0] == agents - 1; });
  // What was started has to be heard: nobody takes over a job that has no round yet.
  for (const auto end = Clock::now() + std::chrono::seconds(2); Clock::now() < end;) {
    io.run_one_for(std::chrono::milliseconds(10));
  }
  counts.welcomed = 0;
  killed = Clock::now();
  ::kill(node_0, SIGKILL);
  ::waitpid(node_0, nullptr, 0);
  const double welcome_ms =
      ms_until(io, killed, "taking over", [&] { return counts.welcomed >= agents - 1; });
  const double next_ms =
      ms_until(io, killed, "the next attempt", [&] { return counts.started[1] == agents - 1; });
  if (counts.coordinate != 1) die(fmt::format("{} agents took over", counts.coordinate));
  fmt::print(
      R"({{"agents":{},"join_ms":{:.1f},"leads_ms":{:.1f},"welcome_ms":{:.1f},"next_ms":{:.1f}}})"
      "\n",
      agents, join_ms, leads_ms, welcome_ms, next_ms);
  std::fflush(stdout);
  std::_Exit(0);  // Saying goodbye 499 times would measure nothing.
}
