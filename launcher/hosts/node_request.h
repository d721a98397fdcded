// What a node's launcher and the one that starts it on its host say to each other, over the node's
// stdin and stdout. A core: no sockets, threads or clock.
//
//   node      \001ddprun-node {hello}\n     as soon as it runs
//   starter   {request}\n SECRET\n          SECRET as the request says
//   node      \001MARK {"opened": PORT}\n   the one that hosts the endpoint
//   node      \001MARK {"begun": true}\n    its first round begins: the job has all it needs
//   node      what its workers write
//   starter   signal N\n                    any number of times; its end: the starter is gone
//   node      \001MARK {end}\n              the last that it says
//
// MARK is random, so that no worker's output can be taken for a message.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

constexpr int node_protocol = 2;

struct NodeHello {
  int protocol = node_protocol;
  std::string version;         // Of ddprun.
  std::string ssh_connection;  // The variable SSH_CONNECTION.
};

struct NodeRequest {
  std::string mark;
  std::string folder;                  // To run in; where there is none, the login's own.
  std::vector<std::string> variables;  // "NAME=value"
  std::vector<std::string> arguments;  // Of ddprun.
  bool has_secret = false;             // A line with it follows.
  bool any_port = false;               // This node hosts the endpoint, on a port that is free.
  std::optional<bool> is_host;         // Elastic jobs: whether it hosts the endpoint.

  bool operator==(const NodeRequest&) const = default;
};

// How the job ended, as one node tells it.
struct NodeEnd {
  int status = 0;
  int node_rank = -1;
  bool has_culprit = false;  // The worker that is to blame ran on this node.
  std::string text;          // What to tell people; "" = nothing.
  bool is_block = false;     // ... and whether that is a failure's block, or a line.
  std::string report;        // JSON, for --report.
  std::string error_file;    // JSON, for TORCHELASTIC_ERROR_FILE.

  bool operator==(const NodeEnd&) const = default;
};

std::string to_line(const NodeHello& hello);
std::string to_line(const NodeRequest& request);
std::string opened_line(const std::string& mark, int port);
std::string begun_line(const std::string& mark);
std::string to_line(const std::string& mark, const NodeEnd& end);
std::string signal_line(int signal);

// Nothing for a line that is none of these; without mark and line end.
std::optional<NodeHello> read_hello(std::string_view line);
std::optional<NodeRequest> read_request(std::string_view line);
std::optional<int> read_opened(std::string_view line);
bool is_begun(std::string_view line);
std::optional<NodeEnd> read_end(std::string_view line);
std::optional<int> read_signal(std::string_view line);

inline constexpr std::string_view hello_mark = "\001ddprun-node ";
std::string message_mark(const std::string& mark);

// Parts a stream of bytes into text and messages that begin with a mark.
class MarkedText {
 public:
  static constexpr std::size_t message_bytes_max = 4 << 20;  // A longer one is text.

  explicit MarkedText(std::string mark) : mark_(std::move(mark)) {}
  void set_mark(std::string mark) { mark_ = std::move(mark); }

  struct Into {
    std::function<void(std::string_view bytes)> text;
    std::function<void(std::string_view line)> message;  // May call set_mark().
  };
  void add(std::string_view bytes, const Into& into);
  void finish(const Into& into);  // What was held back is text.

 private:
  std::string mark_;
  std::string held_;  // May be the beginning of a message.
};

}  // namespace ddprun::launcher
