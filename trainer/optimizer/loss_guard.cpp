// Two ways to look at a loss: at once where it is there, through a queue of copies where it is not.
#include "trainer/optimizer/loss_guard.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace ddprun::trainer {
namespace {

constexpr std::size_t pending_max = 8;  // Steps by which the host may run ahead of the check.
constexpr std::size_t samples_listed_max = 256;

}  // namespace

std::string bad_loss_message(int rank, double loss, const LossOrigin& origin) {
  std::string samples;
  if (!origin.samples.empty()) {
    const std::size_t listed = std::min(origin.samples.size(), samples_listed_max);
    samples =
        fmt::format("; its batch: samples {}",
                    fmt::join(origin.samples.begin(),
                              origin.samples.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
    if (listed < origin.samples.size()) {
      samples += fmt::format(" and {} more", origin.samples.size() - listed);
    }
  }
  return fmt::format(
      "rank {}: the loss is {} at step {} (epoch {}){}: lower --lr, add --warmup-steps or "
      "--clip-grad-norm, or look at these samples if it comes at the same ones again",
      rank,
      std::isnan(loss) ? "nan"
      : loss > 0       ? "inf"
                       : "-inf",
      origin.step, origin.epoch + 1, samples);
}

void LossGuard::check(const torch::Tensor& loss, const LossOrigin& origin) const {
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) {
    throw BadLossError(bad_loss_message(rank_, value, origin), origin.step);
  }
}

void LossGuard::check_first() {
  const Pending first = std::move(pending_.front());
  pending_.pop_front();
  first.copied.synchronize();
  check(first.on_host, first.origin);
}

void LossGuard::watch(const torch::Tensor& loss, LossOrigin origin) {
  if (loss.is_cpu()) return check(loss, origin);
  while (!pending_.empty() && (pending_.size() == pending_max || pending_.front().copied.query())) {
    check_first();
  }
  // Only to page-locked memory does CUDA copy without holding up the host.
  torch::Tensor on_host = torch::empty({}, torch::dtype(loss.scalar_type()).pinned_memory(true));
  on_host.copy_(loss.detach(), /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(loss.device().type());
  c10::Event copied(loss.device().type());
  copied.record(guard.getStream(loss.device()));
  pending_.push_back({std::move(on_host), std::move(copied), std::move(origin)});
}

void LossGuard::finish() {
  while (!pending_.empty()) check_first();
}

}  // namespace ddprun::trainer
