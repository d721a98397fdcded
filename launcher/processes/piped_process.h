// A process with pipes at its stdin, stdout and stderr: an ssh to a host of the job, or a command
// on this machine. It ends with this process, by any signal, and what an ssh has started on the
// other host ends by that.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/processes/child_process.h"
#include "launcher/processes/exit_status.h"

namespace ddprun::launcher {

class PipedProcess {
 public:
  struct Events {
    std::function<void(std::string_view bytes)> on_out;
    std::function<void(std::string_view bytes)> on_err;
    std::function<void(const ExitStatus& status)> on_end;  // After all bytes. Once.
    std::function<bool()> may_read;  // False: nobody takes more now, until go_on().
  };

  PipedProcess(asio::io_context& io, Events events);
  ~PipedProcess();
  PipedProcess(const PipedProcess&) = delete;
  PipedProcess& operator=(const PipedProcess&) = delete;

  // Returns 0, or the number of the error for which it could not be started.
  int start(const std::vector<std::string>& argv, const std::vector<std::string>& environment);

  // In order. `owner` keeps the bytes until they are written.
  void send(std::shared_ptr<const void> owner, std::string_view bytes);
  void send(std::string text);
  void close_input();                                      // What was not sent yet is not.
  void kill();                                             // With its process group.
  int pid() const { return child_ ? child_->pid() : -1; }  // Until on_end.
  void go_on();

 private:
  struct Input {
    explicit Input(asio::io_context& io) : descriptor(io) {}
    asio::posix::stream_descriptor descriptor;
    std::array<char, 64 << 10> buffer{};
    bool paused = false;
  };
  void read(Input& input, const std::function<void(std::string_view)>& take);
  void read_rest(Input& input, const std::function<void(std::string_view)>& take);
  void write_next();
  void wait_for_end();
  void wait_again();

  Events events_;
  std::optional<ChildProcess> child_;
  asio::posix::stream_descriptor to_child_;
  asio::posix::stream_descriptor ended_;  // Readable when it has.
  asio::steady_timer held_;               // Once it has, and cannot be reaped.
  Input out_, err_;
  std::deque<std::pair<std::shared_ptr<const void>, std::string_view>> to_write_;
};

}  // namespace ddprun::launcher
