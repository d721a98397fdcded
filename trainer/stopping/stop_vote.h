// One rank's part in stopping together (stop_agreement.h): its wishes, its clock, and the
// all-reduce.
#pragma once

#include <chrono>
#include <optional>

#include "trainer/report/meters.h"
#include "trainer/stopping/stop_agreement.h"
#include "trainer/stopping/stop_signals.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class StopVote {
 public:
  // `signals` and `communicator` must outlive it; `device` is the communicator's. `max_time_s`:
  // --max-time, from `started` on.
  StopVote(StopSignals& signals, worker::Communicator& communicator, torch::Device device,
           std::optional<std::int64_t> max_time_s, std::chrono::steady_clock::time_point started);

  // There is something that a signal must not lose: a step is done. From now on it waits for a beat
  // at which all agree. Before, it ends the process as ever: nothing would be lost, and a rank that
  // still waits for the others to come would not get to a beat.
  void hold();

  // What beats are from now on. As beat(): all ranks call it between the same two.
  void now(BeatKind kind);

  // A step, or a batch of validation, is done on this rank, and what is told of it. The reason to
  // stop here, on all ranks alike. Collective, in so far as all ranks must call it equally often.
  StopReason beat();

  // All steps are done, on every rank: what is left takes as long as it takes.
  void all_done() { signals_.agreed(); }

  // The last result.
  StopReason reason() const { return reason_; }
  // The last beat was a vote: all ranks have met, and will not again for half a second or so.
  bool has_voted() const { return voted_; }

 private:
  StopBallot ballot(double beat_s) const;
  StopBallot greatest_of_all(StopBallot own);

  StopSignals& signals_;
  worker::Communicator& communicator_;
  torch::Device device_;
  std::optional<std::chrono::steady_clock::time_point> ends_at_;
  StopAgreement agreement_;
  Stopwatch watch_;
  StopReason reason_ = StopReason::None;
  bool voted_ = false;
};

}  // namespace ddprun::trainer
