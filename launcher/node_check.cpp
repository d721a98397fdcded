// A shell that runs the command, with a limit. What it has written is shown only where it says no.
#include "launcher/node_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio/post.hpp>
#include <csignal>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/processes/child_guard.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/child_sessions.h"
#include "launcher/processes/kill_tree.h"
#include "rendezvous/control/clean_text.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/last_line.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::clean_text;
using rendezvous::time_text;
using rendezvous::visible_text;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kept_bytes = 8'192;  // Of each stream, from its end.
constexpr std::size_t said_bytes_max = 400;
constexpr auto tell_after = std::chrono::seconds{2};

void keep_end(std::string& kept, std::string_view bytes) {
  kept += bytes;
  if (kept.size() > kept_bytes) kept.erase(0, kept.size() - kept_bytes);
}

// Less what are options of this job, and would be those of a ddprun that is asked; and what another
// launcher's guard knows this one by.
std::vector<std::string> environment_of_check() {
  const std::string of_guard = std::string(guard_variable_name) + "=";
  std::vector<std::string> all = own_environment();
  std::erase_if(all, [&](const std::string& entry) {
    return entry.starts_with("PET_") || entry.starts_with(of_guard);
  });
  return all;
}

std::string how_it_ended(const ExitStatus& status, bool killed, milliseconds limit) {
  if (killed) return fmt::format("did not end within {}", time_text(limit));
  if (status.signal != 0) return "was killed by " + rendezvous::signal_name(status.signal);
  return fmt::format("ended with {}", status.exit_code);
}

}  // namespace

std::string what_check_says(const ExitStatus& status, bool killed, milliseconds limit,
                            std::string_view out, std::string_view err) {
  if (!killed && status.signal == 0 && status.exit_code == 0) return "";
  std::string text = "its --node-check " + how_it_ended(status, killed, limit);
  std::string_view said = rendezvous::last_line(err);
  if (said.empty()) said = rendezvous::last_line(out);
  if (said.empty()) return text;
  // It ends in logs, JSON and on other nodes' terminals.
  return text + ": " + visible_text(clean_text(said, said_bytes_max), rendezvous::Lines::Escape);
}

struct NodeCheck::Run {
  Run(asio::io_context& io, Done to)
      : done(std::move(to)),
        timer(io),
        process(io, {.on_out = [this](std::string_view bytes) { keep_end(out, bytes); },
                     .on_err = [this](std::string_view bytes) { keep_end(err, bytes); },
                     .on_end = [this](const ExitStatus& status) { ended(status); },
                     .may_read = [] { return true; }}) {}

  ~Run() { kill(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns 0, or the number of the error for which it could not be started.
  int start(const std::string& command) {
    std::vector<std::string> environment = environment_of_check();
    try {
      // The shell may die with this launcher, before the guard has seen what it has started.
      environment.push_back(guard.emplace().variable());
    } catch (const std::system_error& failure) {
      spdlog::warn("no guard ends this node's check should this launcher be killed: {}",
                   failure.what());
    }
    const int error = process.start({"/bin/sh", "-c", command}, environment);
    if (error != 0) {
      guard.reset();
      return error;
    }
    over = false;
    process.close_input();
    if (!guard) return 0;
    guard->wait_until_it_runs();
    guard->add_session(process.pid());
    return 0;
  }
  // Also what has left its process group.
  void kill() const {
    if (!over) kill_tree(process.pid());
  }
  void ended(const ExitStatus& status) {
    over = true;
    guard.reset();
    timer.cancel();
    const Result result{.unfit = what_check_says(status, killed, limit, out, err),
                        .output = out + err,
                        .took = duration_cast<milliseconds>(steady_clock::now() - begun)};
    tell(result);
  }
  void tell(const Result& result) {
    if (auto to = std::exchange(done, nullptr)) to(result);
  }

  Done done;  // Null: it was told, or nobody wants to know any more.
  milliseconds limit{0}, kill_wait{0};
  steady_clock::time_point begun = steady_clock::now();
  bool told_of_wait = false;
  bool killed = false;
  bool over = true;  // The process is reaped, or was never there.
  std::string out, err;
  asio::steady_timer timer;
  PipedProcess process;
  std::optional<ChildGuard> guard;
};

NodeCheck::NodeCheck(asio::io_context& io, std::string command, milliseconds limit,
                     milliseconds kill_wait)
    : io_(io), command_(std::move(command)), limit_(limit), kill_wait_(kill_wait) {}

NodeCheck::~NodeCheck() = default;

bool NodeCheck::is_running() const {
  return !runs_.empty() && !runs_.back()->over && runs_.back()->done;
}

void NodeCheck::start(Done done, bool somebody_waits) {
  std::erase_if(runs_, [](const auto& run) { return run->over; });
  for (const auto& run : runs_) {
    run->done = nullptr;
    run->kill();
    run->timer.cancel();
  }
  const auto run = std::make_shared<Run>(io_, std::move(done));
  run->limit = limit_;
  run->kill_wait = kill_wait_;
  run->told_of_wait = !somebody_waits;
  if (const int error = run->start(command_); error != 0) {
    asio::post(io_, [run, error] {
      run->tell({.unfit = fmt::format("its --node-check could not be started: /bin/sh: {}",
                                      std::strerror(error))});
    });
  } else {
    wait(run);
  }
  runs_.push_back(run);
}

// Twice: until somebody should know what is waited for, and for the rest.
void NodeCheck::wait(const std::shared_ptr<Run>& run) {
  const bool first = !std::exchange(run->told_of_wait, true);
  const auto due = run->begun + (first ? std::min<milliseconds>(tell_after, limit_) : limit_);
  run->timer.expires_at(due);
  run->timer.async_wait([this, run](const asio::error_code& error) {
    if (error || !run->done) return;
    if (steady_clock::now() < run->begun + limit_) {
      spdlog::info("waiting for this node's check, {} at most: {}", time_text(limit_), command_);
      return wait(run);
    }
    run->killed = true;
    run->kill();
    give_up_later(run);
  });
}

// It may hang in the kernel, where a machine that is ill has its checks hang: who waits for the
// verdict has it then, and the process is reaped if it ever ends.
void NodeCheck::give_up_later(const std::shared_ptr<Run>& run) {
  run->timer.expires_after(run->kill_wait);
  run->timer.async_wait([run](const asio::error_code& error) {
    if (error || !run->done) return;
    const std::string in = read_wait_channel(run->process.pid());
    run->tell({.unfit = fmt::format("its --node-check did not end within {}, nor of SIGKILL{}",
                                    time_text(run->limit),
                                    in.empty() ? "" : ": it hangs in the kernel's " + in),
               .output = run->out + run->err,
               .took = duration_cast<milliseconds>(steady_clock::now() - run->begun)});
  });
}

}  // namespace ddprun::launcher
