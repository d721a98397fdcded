// Two ways to look at a loss: at once where it is there, through a queue of copies where it is not.
#include "trainer/optimizer/loss_guard.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string_view>

namespace ddprun::trainer {
namespace {

constexpr std::size_t pending_max = 8;  // Steps by which the host may run ahead of the check.
constexpr std::size_t samples_listed_max = 8;  // Of those that no file could take.

// The step in words that begin with "nan at step 12345 (epoch ".
std::optional<std::int64_t> step_behind(std::string_view words) {
  for (const std::string_view loss : {"nan at step ", "inf at step ", "-inf at step "}) {
    if (!words.starts_with(loss)) continue;
    words.remove_prefix(loss.size());
    std::int64_t step = 0;  // And so it stays where no number is that fits.
    const char* end = std::from_chars(words.data(), words.data() + words.size(), step).ptr;
    words.remove_prefix(static_cast<std::size_t>(end - words.data()));
    if (step > 0 && words.starts_with(" (epoch ")) return step;
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path list_samples(const std::filesystem::path& folder, int rank,
                                   const LossOrigin& origin, const NameOfSample& name_of) {
  if (folder.empty() || origin.samples.empty()) return {};
  std::filesystem::path path =
      folder / fmt::format("bad_loss_step_{}_rank_{}.txt", origin.step, rank);
  std::ofstream file(path);
  for (const std::int64_t sample : origin.samples) {
    const std::string name = name_of ? name_of(sample) : "";
    file << sample << (name.empty() ? "" : " ") << name << '\n';
  }
  file.flush();
  return file ? path : std::filesystem::path();
}

std::string bad_loss_message(int rank, double loss, const LossOrigin& origin,
                             const std::filesystem::path& list) {
  std::string samples = ", or look at its samples if it comes at the same ones again: ";
  if (!list.empty()) {
    samples += fmt::format("they are listed in {}", list.string());
  } else {
    const std::size_t listed = std::min(origin.samples.size(), samples_listed_max);
    samples += fmt::format(
        "{}", fmt::join(origin.samples.begin(),
                        origin.samples.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
    if (listed < origin.samples.size()) {
      samples += fmt::format(" and {} more", origin.samples.size() - listed);
    }
  }
  return fmt::format(
      "rank {}: the loss is {} at step {} (epoch {}): lower --lr, add --warmup-steps or "
      "--clip-grad-norm{}",
      rank,
      std::isnan(loss) ? "nan"
      : loss > 0       ? "inf"
                       : "-inf",
      origin.step, origin.epoch + 1, origin.samples.empty() ? "" : samples);
}

std::optional<std::int64_t> bad_loss_step(const std::string& message) {
  constexpr std::string_view before = ": the loss is ";
  const std::string_view words = message;
  for (std::size_t at = words.find(before); at != words.npos; at = words.find(before, at + 1)) {
    if (const auto step = step_behind(words.substr(at + before.size()))) return step;
  }
  return std::nullopt;
}

void LossGuard::check(const torch::Tensor& loss, const LossOrigin& origin) {
  const auto value = loss.item<double>();
  last_ = value;
  if (!std::isfinite(value)) {
    if (throw_if_ended_) throw_if_ended_();
    const auto list = list_samples(folder_ ? folder_() : "", rank_, origin, name_of_);
    throw BadLossError(bad_loss_message(rank_, value, origin, list), origin.step);
  }
}

void LossGuard::check_first() {
  const Pending first = std::move(pending_.front());
  pending_.pop_front();
  first.copied.synchronize();
  if (on_look_) on_look_();
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
