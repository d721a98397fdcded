// One rank's part in stopping together (stop_agreement.h): its wishes, its clock, and the
// all-reduce.
#pragma once

#include <chrono>
#include <optional>

#include "trainer/device.h"
#include "trainer/report/meters.h"
#include "trainer/stop_agreement.h"
#include "trainer/stop_signals.h"

namespace ddprun::trainer {

class StopVote {
 public:
  // `signals` and `place` must outlive it. `max_time_s`: --max-time, from `started` on.
  StopVote(StopSignals& signals, DeviceAndPeers& place, std::optional<std::int64_t> max_time_s,
           std::chrono::steady_clock::time_point started);

  // A step, or a batch of validation, is done on this rank. The reason to stop here, on all ranks
  // alike. Collective, in so far as all ranks must call it equally often.
  StopReason beat();

  // The last result.
  StopReason reason() const { return reason_; }

 private:
  StopBallot ballot();
  StopBallot greatest_of_all(StopBallot own);

  StopSignals& signals_;
  DeviceAndPeers& place_;
  std::optional<std::chrono::steady_clock::time_point> ends_at_;
  StopAgreement agreement_;
  Stopwatch since_vote_;
  std::int64_t beats_ = 0;  // Since the last vote.
  StopReason reason_ = StopReason::None;
};

}  // namespace ddprun::trainer
