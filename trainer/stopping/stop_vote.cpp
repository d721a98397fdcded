// The vote of all ranks as one all-reduce; when there is one is stop_agreement.cpp's decision.
#include "trainer/stopping/stop_vote.h"

#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

StopVote::StopVote(StopSignals& signals, worker::Communicator& communicator, torch::Device device,
                   std::optional<std::int64_t> max_time_s,
                   std::chrono::steady_clock::time_point started)
    : signals_(signals),
      communicator_(communicator),
      device_(device),
      agreement_(communicator.world_size()) {
  if (max_time_s) ends_at_ = started + std::chrono::seconds{*max_time_s};
  signals_.set_patience(agreement_.patience_s());
}

void StopVote::hold() { signals_.hold(/*tell=*/communicator_.rank() == 0); }

void StopVote::now(BeatKind kind) { agreement_.now(kind, watch_.lap()); }

StopReason StopVote::beat() {
  hold();  // Validation of a run that was resumed at an epoch's end has its beats before any step.
  const auto beat_s = agreement_.beat(watch_.lap());
  voted_ = beat_s.has_value();
  if (!beat_s) return StopReason::None;
  reason_ = agreement_.conclude(greatest_of_all(ballot(*beat_s)));
  signals_.all_came();
  signals_.set_patience(agreement_.patience_s());
  if (reason_ != StopReason::None) signals_.agreed();
  return reason_;
}

StopBallot StopVote::ballot(double beat_s) const {
  StopBallot own{signals_.wish(), beat_s};
  const bool time_up = ends_at_ && std::chrono::steady_clock::now() >= *ends_at_;
  if (own.reason == StopReason::None && time_up) own.reason = StopReason::TimeUp;
  return own;
}

StopBallot StopVote::greatest_of_all(StopBallot own) {
  if (communicator_.world_size() == 1) {
    // A lone worker calls nothing else that would tell it that the attempt is over, because others
    // come (Membership). On a GPU it would wait for the stream; there each step with --shards asks.
    if (!communicator_.is_cuda()) communicator_.barrier();
    return own;
  }
  torch::Tensor numbers =
      torch::tensor({static_cast<double>(own.reason), own.beat_s}, torch::kFloat64).to(device_);
  worker::all_reduce(communicator_, numbers, worker::ReduceOp::Max);
  // Waits for a GPU: another reason not to vote at each step.
  numbers = worker::result_on_host(communicator_, numbers);
  const double* number = numbers.data_ptr<double>();
  return {static_cast<StopReason>(static_cast<int>(number[0])), number[1]};
}

}  // namespace ddprun::trainer
