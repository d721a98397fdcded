// The node's end of its connection to the launcher that started it: what it is told, and how it
// answers (node_request.h). Its stdin is the node's alone; workers get an empty one.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/hosts/node_request.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

class NodeChannel {
 public:
  // Takes stdin over, says hello, and waits for the request. Throws std::runtime_error when none
  // comes, or none that is understood.
  explicit NodeChannel(const std::string& version);
  NodeChannel(const NodeChannel&) = delete;
  NodeChannel& operator=(const NodeChannel&) = delete;

  const NodeRequest& request() const { return request_; }
  // A descriptor from which the job's secret can be read once, for --secret-file=/dev/fd/N.
  int secret_fd() const { return secret_fd_.get(); }

  // From here on: each signal that is passed on, and once the end of the connection.
  void watch(asio::io_context& io, std::function<void(int signal)> on_signal,
             std::function<void()> on_gone);
  void stop_watching() { input_.reset(); }

  // Written at once, past what waits to be written of workers: from a loop that is to go on only
  // before there is anything.
  void say_opened(int port) const;
  void say_begun() const;
  // Kept until say_end(), when the workers' last output is written.
  void keep_end(NodeEnd end) { end_ = std::move(end); }
  void say_end() const;

 private:
  std::string read_line_of_stdin(std::size_t bytes_max) const;
  void take_secret();
  void wait();

  rendezvous::UniqueFd fd_;  // What was stdin.
  rendezvous::UniqueFd secret_fd_;
  NodeRequest request_;
  std::optional<NodeEnd> end_;
  std::unique_ptr<asio::posix::stream_descriptor> input_;
  std::string received_;
  std::array<char, 256> buffer_{};
  std::function<void(int)> on_signal_;
  std::function<void()> on_gone_;
};

}  // namespace ddprun::launcher
