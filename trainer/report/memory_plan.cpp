// Memory of a batch is taken for a straight line over its images, which two points give:
// activations and their gradients are; work space of convolutions is not quite, hence the tenth.
#include "trainer/report/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace ddprun::trainer {
namespace {

constexpr std::int64_t probe_share = 16;  // Of the batch: what is left must be enough for it.
constexpr std::int64_t trial_share = 16;
constexpr std::int64_t probe_least = 2;  // Batch normalisation wants more than one value.

}  // namespace

std::optional<BatchMemory> measure_batches(
    std::int64_t images, const std::function<std::int64_t(std::int64_t)>& peak_of) {
  const std::int64_t fewer = std::max(images / probe_share, probe_least);
  if (2 * fewer > images) return std::nullopt;
  try {
    // All far below the batch that failed: what is left is all that they have. The first one leaves
    // what only then is made and stays: gradients, and work space of libraries.
    peak_of(fewer);
    const std::int64_t one = peak_of(fewer);
    const std::int64_t two = peak_of(2 * fewer);
    if (two <= one) return std::nullopt;
    const std::int64_t per_image = (two - one + fewer - 1) / fewer;
    return BatchMemory{std::max<std::int64_t>(0, one - per_image * fewer), per_image};
  } catch (const std::exception&) {  // Not even that fits, or the model takes no such batch.
    return std::nullopt;
  }
}

std::optional<std::int64_t> fitting_batch(std::int64_t images, const BatchMemory& memory,
                                          std::int64_t free_bytes) {
  if (memory.per_image <= 0) return std::nullopt;
  std::int64_t fits = (free_bytes - free_bytes / 10 - memory.fixed) / memory.per_image;
  fits = std::min(fits, images - 1);
  if (fits >= 8) fits -= fits % 8;  // Tensor cores want multiples, and people round numbers.
  return fits > 0 ? std::optional(fits) : std::nullopt;
}

std::optional<std::int64_t> fitting_batch(std::int64_t images, const BatchMemory& memory,
                                          std::int64_t free_bytes, const FitsIn& fits_in) {
  auto fits = fitting_batch(images, memory, free_bytes);
  while (fits && !fits_in(*fits)) {
    fits = fitting_batch(*fits - *fits / trial_share, memory, free_bytes);
  }
  return fits;
}

std::string bytes_text(std::int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.2f} GiB", number / (1 << 30));
  return fmt::format("{:.1f} MiB", number / (1 << 20));
}

std::string lasting_text(const LastingMemory& memory) {
  std::string text;
  const auto add = [&](const char* what, std::int64_t bytes) {
    if (bytes > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, bytes_text(bytes));
    }
  };
  add("weights", memory.weights);
  add("gradients", memory.gradients);
  add("momentum", memory.momentum);
  add("averaged weights", memory.average);
  add("resident data", memory.data);
  return text;
}

std::string out_of_memory_text(const std::string& why, std::int64_t images,
                               const LastingMemory& lasting,
                               const std::optional<BatchMemory>& batch, std::int64_t free_bytes,
                               const FitsIn& fits_in) {
  std::string text =
      fmt::format("a batch of {} images did not fit into the GPU's memory, beside {}: ", images,
                  lasting_text(lasting));
  std::optional<std::int64_t> fits;
  if (batch) {
    fits = fits_in ? fitting_batch(images, *batch, free_bytes, fits_in)
                   : fitting_batch(images, *batch, free_bytes);
  }
  if (fits) {
    text += fmt::format(
        "it has {} for them, an image takes {}, and {} images should fit: give --batch-size {}, "
        "with --accumulate {} for as many images a step, or --precision bf16",
        bytes_text(free_bytes), bytes_text(batch->per_image), *fits, *fits,
        (images + *fits - 1) / *fits);
  } else {
    text +=
        "give a smaller --batch-size, with --accumulate for as many images a step, or "
        "--precision bf16";
  }
  return text + ". What was tried: " + why;
}

}  // namespace ddprun::trainer
