// Whether this node is fit for the job: --node-check COMMAND, an operator's own word, of which exit
// code 0 alone means yes. Of a machine whose GPU is lost each attempt would fail in the same way,
// and take the other nodes' with it.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/processes/exit_status.h"
#include "launcher/processes/piped_process.h"

namespace ddprun::launcher {

// What is wrong, in words; "": it has ended with 0. `killed`: it had not ended within `limit`. Of
// what it has written the last line counts, of stderr rather than of stdout.
std::string what_check_says(const ExitStatus& status, bool killed, std::chrono::milliseconds limit,
                            std::string_view out, std::string_view err);

// Lives on the agent's io_context, in its thread.
class NodeCheck {
 public:
  struct Result {
    std::string unfit;   // What is wrong; "": nothing.
    std::string output;  // The end of what it has written, stdout before stderr.
    std::chrono::milliseconds took{0};
  };
  using Done = std::function<void(const Result&)>;

  // An empty command: every node is fit. `kill_wait`: from SIGKILL, which follows `limit`, until
  // one that hangs in the kernel is not waited for any more.
  NodeCheck(asio::io_context& io, std::string command, std::chrono::milliseconds limit,
            std::chrono::milliseconds kill_wait = std::chrono::seconds(5));
  ~NodeCheck();
  NodeCheck(const NodeCheck&) = delete;
  NodeCheck& operator=(const NodeCheck&) = delete;

  bool is_asked_for() const { return !command_.empty(); }
  bool is_running() const;
  // Once `done` has come, or in its place: one that still runs is killed, and does not tell.
  // `done` comes from the loop, never from within. Where `somebody_waits` a check that takes long
  // is said to be what is waited for.
  void start(Done done, bool somebody_waits = true);

 private:
  struct Run;
  void wait(const std::shared_ptr<Run>& run);
  static void give_up_later(const std::shared_ptr<Run>& run);

  asio::io_context& io_;
  const std::string command_;
  const std::chrono::milliseconds limit_, kill_wait_;
  std::vector<std::shared_ptr<Run>> runs_;  // The last one, and those that are being killed.
};

}  // namespace ddprun::launcher
