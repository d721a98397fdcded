// Where all ranks of the job stand, gathered for the reports of nodes that see a stall.
//
// All nodes of a job may see it in the same second (NCCL's collectives run on the device, and all
// hosts stand). Each asks the node that coordinates the job; that one asks each node once, and what
// comes of it is the answer to all who ask until it is too old. Nobody who is asked asks others for
// it.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job_view.h"
#include "launcher/membership/background_call.h"
#include "launcher/status/node_lines.h"

namespace ddprun::launcher {

class JobStacks {
 public:
  using Lines = std::vector<std::string>;
  // This node's own.
  using Own = std::function<void(std::function<void(NodeLines)>)>;

  // `io` and `view` must outlive it.
  JobStacks(asio::io_context& io, const JobView& view, Own own);

  // On the node that coordinates the job, of this attempt (counted from 1). `done` comes from the
  // loop or at once, within some 25 s; not at all where this node ceases to coordinate it.
  void collect(int round, std::function<void(const Lines&)> done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked;

  void read(const std::shared_ptr<Asked>& asked);
  void tell(const Lines& lines);

  const JobView& view_;
  Own own_;
  BackgroundCall read_call_;
  std::vector<std::function<void(const Lines&)>> waiting_;
  int number_ = 0;                 // Of the question under way ...
  Clock::time_point asked_until_;  // ... which is given up then.
  int round_ = 0;                  // Of what is kept ...
  Clock::time_point kept_until_;   // ... until then.
  Lines kept_;
};

}  // namespace ddprun::launcher
