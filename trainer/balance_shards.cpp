// Every rank decides for itself by the same figures; only rank 0 tells.
#include "trainer/balance_shards.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "trainer/make_training_job.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

bool balance_shards(TrainingJob& job, StepMeters& meters) {
  if (!job.balance) return false;
  const StepPace own = meters.take_pace();
  std::vector<StepPace> paces(static_cast<std::size_t>(job.env.world_size));
  job.communicator().all_gather_on_host(&own, paces.data(), sizeof own,
                                        worker::current_stream(job.place.device));
  const auto why = job.balance->look(paces);
  if (!why) return false;
  job.shares = job.balance->shares();
  wrap_model_anew(job);
  meters.restart_clock();
  std::vector<int> counts;
  for (const ShardRange& share : job.shares) counts.push_back(share.count());
  job.reporter->line(fmt::format("from step {} on {}", job.state.step + 1, *why));
  job.reporter->event("shards", {{"step", job.state.step}, {"shards", counts}, {"reason", *why}});
  return true;
}

}  // namespace ddprun::trainer
