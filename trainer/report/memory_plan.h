// What of a GPU's memory a training takes, in words, and which batch would fit where one did not:
// decided from numbers that were measured elsewhere. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ddprun::trainer {

// Bytes of what stays from step to step.
struct LastingMemory {
  std::int64_t weights = 0;  // And buffers, and with --working-copies those.
  std::int64_t gradients = 0;
  std::int64_t momentum = 0;
  std::int64_t average = 0;  // With --ema.
  std::int64_t data = 0;     // With --resident-data.
};

// Bytes that forward and backward take besides: so many, and so many an image.
struct BatchMemory {
  std::int64_t fixed = 0;
  std::int64_t per_image = 0;
};

// By two small batches, after one that is not measured, from what `peak_of(images)` measures.
// Nothing where it throws, or where more images do not take more.
std::optional<BatchMemory> measure_batches(
    std::int64_t images, const std::function<std::int64_t(std::int64_t)>& peak_of);

// The most images, fewer than `images`, for which `free_bytes` are enough with a tenth to spare, as
// blocks of the allocator do not fit without gaps; in eights where there are so many.
std::optional<std::int64_t> fitting_batch(std::int64_t images, const BatchMemory& memory,
                                          std::int64_t free_bytes);

// Whether so many images fit, by a trial.
using FitsIn = std::function<bool(std::int64_t images)>;

// The same, tried from there downwards in steps of a sixteenth.
std::optional<std::int64_t> fitting_batch(std::int64_t images, const BatchMemory& memory,
                                          std::int64_t free_bytes, const FitsIn& fits_in);

std::string bytes_text(std::int64_t bytes);  // "97.7 MiB"

// "weights 97.7 MiB, gradients 97.7 MiB, ...", without what there is none of.
std::string lasting_text(const LastingMemory& memory);

// Of a step with so many images that ran out of memory; `why` is the allocator's message. Null
// `fits_in`: what `batch` says is enough.
std::string out_of_memory_text(const std::string& why, std::int64_t images,
                               const LastingMemory& lasting,
                               const std::optional<BatchMemory>& batch, std::int64_t free_bytes,
                               const FitsIn& fits_in = nullptr);

}  // namespace ddprun::trainer
