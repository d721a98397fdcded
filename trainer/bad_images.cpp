// Each rank names its own images on stderr; their number is summed, as only rank 0 says the total.
#include "trainer/bad_images.h"

#include <fmt/format.h>

#include <iostream>
#include <iterator>

#include "worker/torch/tensor_collectives.h"
#include "worker/wording.h"

namespace ddprun::trainer {
namespace {

constexpr std::size_t names_max = 10;

}  // namespace

std::string bad_images_text(const std::vector<SkippedImage>& skipped) {
  std::string text;
  for (std::size_t i = 0; i < std::min(skipped.size(), names_max); ++i) {
    text += fmt::format("\n  {}", skipped[i].reason);
  }
  if (skipped.size() > names_max) {
    text += fmt::format("\n  and {} more", skipped.size() - names_max);
  }
  return text;
}

std::int64_t report_bad_images(TrainingJob& job, const std::vector<SkippedImage>& skipped,
                               const std::string& pass) {
  if (!job.options.skip_bad_images) return 0;
  if (!skipped.empty()) {
    std::cerr << fmt::format("train: warning: rank {}: epoch {}, {}: {} cannot be read:{}",
                             job.env.rank, epoch_at_hand(job.state), pass,
                             worker::counted(std::ssize(skipped), "image"),
                             bad_images_text(skipped))
              << std::endl;
  }
  // Also where this rank skipped none: the sum is a collective, in which all ranks take part.
  torch::Tensor count =
      torch::tensor({static_cast<double>(skipped.size())}, torch::kFloat64).to(job.place.device);
  worker::all_reduce(job.communicator(), count, worker::ReduceOp::Sum);
  const auto all = static_cast<std::int64_t>(count.item<double>());
  if (all > 0) {
    job.reporter->line(fmt::format("{} could not be read and {} {} in epoch {}",
                                   worker::counted(all, "image"), all == 1 ? "was" : "were",
                                   pass == "training" ? "replaced" : "left out of the validation",
                                   epoch_at_hand(job.state)));
  }
  job.reporter->event("bad_images", {{"epoch", job.state.epoch}, {"pass", pass}, {"images", all}});
  return all;
}

}  // namespace ddprun::trainer
