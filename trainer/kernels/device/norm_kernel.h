// Batch normalisation with an added shortcut and ReLU, of activations in channels-last order:
//
//   y = relu(scale[c] * x + shift[c] + shortcut)     scale = weight / deviation
//   gx = a[c] * g + b[c] * x + k[c]                  g = gradient of y where y > 0, else 0
//
// Forward and backward are three launches each: sums of parts of the rows, what follows from them
// for each channel, and one pass over all elements. Memory is what they wait for: each reads its
// inputs twice and writes its results once, and of y backward reads one bit an element. Where g is
// wanted as such, for a shortcut or since y went to two places and has two gradients, the sums
// write it on their way, and the last pass reads it in the place of what it was made from.
//
// So each stage has one name and is written for both directions: sum_rows_thread, and
// fold_sums_thread once all threads of the block are there; add_parts_thread, and
// finish_channel_thread in the same way; write_rows_thread.
// A core: no sockets, threads or clock.
#pragma once

#include <cmath>
#include <cstdint>

#include "trainer/kernels/device/norm_geometry.h"
#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/number_vector.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

struct NormForward {
  NormGeometry geometry;
  NumberFormat format = NumberFormat::Float32;  // Of x, shortcut and y, each aligned to 16 bytes.
  std::int32_t relu = 0;
  const void* x = nullptr;
  const void* shortcut = nullptr;  // Null: none.
  const float* weight = nullptr;
  const float* bias = nullptr;
  double epsilon = 0;
  double momentum = 0;  // Of the running statistics, which are float32.
  float* running_mean = nullptr;
  float* running_variance = nullptr;  // Takes up the unbiased one.
  std::int64_t* batches = nullptr;    // Counts one more.
  float* partial = nullptr;           // (parts, 2, channels): for the sums.
  float* statistics = nullptr;        // (4, channels): mean, 1 / deviation, scale, shift.
  void* y = nullptr;
  std::uint8_t* mask = nullptr;  // (rows, channels / 8): which of y are positive. Null: no ReLU.
};

struct NormBackward {
  NormGeometry geometry;
  NumberFormat format = NumberFormat::Float32;  // Of x and all gradients of its shape.
  const void* gradient = nullptr;               // Of y.
  const void* other_gradient = nullptr;         // Of y, to be added to that one; null: none.
  const void* x = nullptr;
  const std::uint8_t* mask = nullptr;  // Null: there was no ReLU.
  const float* statistics = nullptr;
  const float* weight = nullptr;
  float* partial = nullptr;  // (parts, 2, channels)
  float* factors = nullptr;  // (3, channels): a, b, k.
  float* weight_gradient = nullptr;
  float* bias_gradient = nullptr;
  void* x_gradient = nullptr;
  void* g = nullptr;  // Null: not wanted, and there is no other gradient.
};

// --- Sums of the parts --------------------------------------------------------------------------

// `shared`: norm_sums rows of kernel_threads, of the block. All threads write, then all fold.
DDPRUN_HOST_DEVICE inline void share_sums(const float (&first)[vector_numbers],
                                          const float (&second)[vector_numbers], KernelPlace place,
                                          float* shared) {
  for (int k = 0; k < vector_numbers; ++k) {
    shared[k * kernel_threads + place.thread] = first[k];
    shared[(vector_numbers + k) * kernel_threads + place.thread] = second[k];
  }
}

DDPRUN_HOST_DEVICE inline void fold_sums_thread(const NormGeometry& geometry, float* partial,
                                                KernelPlace place, const float* shared) {
  const std::int64_t part = place.block / geometry.tiles;
  const std::int32_t tile = static_cast<std::int32_t>(place.block % geometry.tiles);
  const std::int32_t sums = norm_sums * geometry.lanes;
  for (std::int32_t i = static_cast<std::int32_t>(place.thread); i < sums;
       i += static_cast<std::int32_t>(kernel_threads)) {
    const std::int32_t k = i / geometry.lanes;
    const std::int32_t lane = i % geometry.lanes;
    const std::int32_t vector = tile * geometry.lanes + lane;
    if (vector * vector_numbers >= geometry.channels) continue;
    float sum = 0;
    for (std::int32_t line = 0; line < geometry.lines; ++line) {
      sum += shared[k * static_cast<std::int32_t>(kernel_threads) + line * geometry.lanes + lane];
    }
    const std::int32_t channel = vector * vector_numbers + k % vector_numbers;
    partial[(2 * part + k / vector_numbers) * geometry.channels + channel] = sum;
  }
}

// Of x around the channel's first value: around 0, squares would lose the variance in a large mean.
template <NumberFormat format>
DDPRUN_HOST_DEVICE void sum_rows_thread(const NormForward& pass, KernelPlace place, float* shared) {
  const NormThread own = norm_thread(pass.geometry, place);
  float first[vector_numbers] = {};
  float second[vector_numbers] = {};
  if (own.first < own.end) {
    const NumberVector<format> of_first_row = load_vector<format>(pass.x, own.vector);
    float center[vector_numbers];
    for (int i = 0; i < vector_numbers; ++i) center[i] = number_of(of_first_row, i);
    NumberVector<format> x[norm_rows_at_once_max];
    for_each_row<norm_rows_at_once_max>(
        own, [&](std::int64_t row, int k) { x[k] = load_vector<format>(pass.x, own.at(row)); },
        [&](std::int64_t, int k) {
          for (int i = 0; i < vector_numbers; ++i) {
            const float away = number_of(x[k], i) - center[i];
            first[i] += away;
            second[i] = fmaf(away, away, second[i]);
          }
        });
  }
  share_sums(first, second, place, shared);
}

// What backward reads of a row.
template <NumberFormat format>
struct NormBackwardRow {
  NumberVector<format> x;
  NumberVector<format> gradient;
  std::uint8_t mask;  // A bit is 1 where y was positive, or no number.

  DDPRUN_HOST_DEVICE float masked(int i, float value) const {
    return (mask >> i & 1) != 0 ? value : 0.0F;
  }
  DDPRUN_HOST_DEVICE float g(int i) const { return masked(i, number_of(gradient, i)); }
};

template <NumberFormat format>
DDPRUN_HOST_DEVICE NormBackwardRow<format> load_row(const NormBackward& pass, const void* gradient,
                                                    const std::uint8_t* mask, std::int64_t vector) {
  return {load_vector<format>(pass.x, vector), load_vector<format>(gradient, vector),
          mask != nullptr ? mask[vector] : std::uint8_t{0xff}};
}

// The thread's channels of what is there once for each channel.
DDPRUN_HOST_DEVICE inline void load_channels(const float* of_channels, const NormThread& own,
                                             float (&to)[vector_numbers]) {
  for (int i = 0; i < vector_numbers; ++i) to[i] = of_channels[own.vector * vector_numbers + i];
}

// Of g, and of g times x's distance from the mean. Two gradients are added and rounded as LibTorch
// adds them.
template <NumberFormat format>
DDPRUN_HOST_DEVICE void sum_rows_thread(const NormBackward& pass, KernelPlace place,
                                        float* shared) {
  const NormThread own = norm_thread(pass.geometry, place);
  float first[vector_numbers] = {};
  float second[vector_numbers] = {};
  if (own.first < own.end) {
    float mean[vector_numbers];
    load_channels(pass.statistics, own, mean);
    NormBackwardRow<format> rows[norm_rows_at_once];
    NumberVector<format> others[norm_rows_at_once];
    for_each_row<norm_rows_at_once>(
        own,
        [&](std::int64_t row, int k) {
          rows[k] = load_row<format>(pass, pass.gradient, pass.mask, own.at(row));
          if (pass.other_gradient != nullptr) {
            others[k] = load_vector<format>(pass.other_gradient, own.at(row));
          }
        },
        [&](std::int64_t row, int k) {
          float g[vector_numbers];
          for (int i = 0; i < vector_numbers; ++i) {
            g[i] = pass.other_gradient == nullptr
                       ? rows[k].g(i)
                       : rows[k].masked(i, rounded<format>(number_of(rows[k].gradient, i) +
                                                           number_of(others[k], i)));
            first[i] += g[i];
            second[i] = fmaf(g[i], number_of(rows[k].x, i) - mean[i], second[i]);
          }
          if (pass.g != nullptr) store_vector<format>(pass.g, own.at(row), g);
        });
  }
  share_sums(first, second, place, shared);
}

// --- What follows from them ---------------------------------------------------------------------

// A block has vector_numbers channels. `shared`: two rows of kernel_threads.
DDPRUN_HOST_DEVICE inline std::int32_t norm_channel(KernelPlace place) {
  return static_cast<std::int32_t>(place.block) * vector_numbers +
         static_cast<std::int32_t>(place.thread) % vector_numbers;
}

DDPRUN_HOST_DEVICE inline void add_parts_thread(const NormGeometry& geometry, const float* partial,
                                                KernelPlace place, double* shared) {
  const std::int32_t channel = norm_channel(place);
  double first = 0;
  double second = 0;
  for (std::int64_t part = place.thread / vector_numbers; part < geometry.parts;
       part += norm_part_lanes) {
    first += static_cast<double>(partial[2 * part * geometry.channels + channel]);
    second += static_cast<double>(partial[(2 * part + 1) * geometry.channels + channel]);
  }
  shared[place.thread] = first;
  shared[kernel_threads + place.thread] = second;
}

DDPRUN_HOST_DEVICE inline double add_lanes(const double* shared, std::uint32_t thread) {
  double sum = 0;
  for (std::int32_t lane = 0; lane < norm_part_lanes; ++lane) {
    sum += shared[lane * vector_numbers + static_cast<std::int32_t>(thread)];
  }
  return sum;
}

// The first vector_numbers threads of a block; the running statistics take up the batch's.
DDPRUN_HOST_DEVICE inline void finish_channel_thread(const NormForward& pass, KernelPlace place,
                                                     const double* shared) {
  if (place.thread >= vector_numbers) return;
  const std::int32_t channels = pass.geometry.channels;
  const std::int32_t channel = norm_channel(place);
  const auto count = static_cast<double>(pass.geometry.rows);
  // All reads before the first write, after which the device would wait for each.
  const auto center = static_cast<double>(load_number(pass.x, channel, pass.format));
  const float weight = pass.weight[channel];
  const float bias = pass.bias[channel];
  const auto running_mean = static_cast<double>(pass.running_mean[channel]);
  const auto running_variance = static_cast<double>(pass.running_variance[channel]);
  const std::int64_t batches = channel == 0 ? *pass.batches : 0;
  const double sum = add_lanes(shared, place.thread);
  const double from_center = sum / count;
  const double squares = add_lanes(shared + kernel_threads, place.thread) - sum * from_center;
  const double mean = center + from_center;
  const double variance = squares < 0 ? 0 : squares / count;  // A NaN stays one.
  const auto inverse = static_cast<float>(1 / sqrt(variance + pass.epsilon));
  const float scale = weight * inverse;
  pass.statistics[channel] = static_cast<float>(mean);
  pass.statistics[channels + channel] = inverse;
  pass.statistics[2 * channels + channel] = scale;
  pass.statistics[3 * channels + channel] = bias - static_cast<float>(mean) * scale;
  const auto followed = [&](double running, double batch) {
    return static_cast<float>((1 - pass.momentum) * running + pass.momentum * batch);
  };
  pass.running_mean[channel] = followed(running_mean, mean);
  pass.running_variance[channel] = followed(running_variance, variance * count / (count - 1));
  if (channel == 0) *pass.batches = batches + 1;
}

DDPRUN_HOST_DEVICE inline void finish_channel_thread(const NormBackward& pass, KernelPlace place,
                                                     const double* shared) {
  if (place.thread >= vector_numbers) return;
  const std::int32_t channels = pass.geometry.channels;
  const std::int32_t channel = norm_channel(place);
  const auto count = static_cast<double>(pass.geometry.rows);
  const double sum = add_lanes(shared, place.thread);
  const double with_x = add_lanes(shared + kernel_threads, place.thread);
  const auto mean = static_cast<double>(pass.statistics[channel]);
  const auto inverse = static_cast<double>(pass.statistics[channels + channel]);
  const double scale = inverse * static_cast<double>(pass.weight[channel]);
  const double of_x = -scale * inverse * inverse * with_x / count;
  pass.weight_gradient[channel] = static_cast<float>(with_x * inverse);
  pass.bias_gradient[channel] = static_cast<float>(sum);
  pass.factors[channel] = static_cast<float>(scale);
  pass.factors[channels + channel] = static_cast<float>(of_x);
  pass.factors[2 * channels + channel] = static_cast<float>(-scale * sum / count - of_x * mean);
}

// --- All elements -------------------------------------------------------------------------------

template <NumberFormat format>
DDPRUN_HOST_DEVICE void write_rows_thread(const NormForward& pass, KernelPlace place) {
  const NormThread own = norm_thread(pass.geometry, place);
  if (own.first >= own.end) return;
  const std::int32_t channels = pass.geometry.channels;
  float scale[vector_numbers];
  float shift[vector_numbers];
  load_channels(pass.statistics + 2 * channels, own, scale);
  load_channels(pass.statistics + 3 * channels, own, shift);
  NumberVector<format> x[norm_rows_at_once];
  NumberVector<format> shortcut[norm_rows_at_once];
  for_each_row<norm_rows_at_once>(
      own,
      [&](std::int64_t row, int k) {
        x[k] = load_vector<format>(pass.x, own.at(row));
        if (pass.shortcut != nullptr) shortcut[k] = load_vector<format>(pass.shortcut, own.at(row));
      },
      [&](std::int64_t row, int k) {
        float results[vector_numbers];
        std::uint8_t bits = 0;
        for (int i = 0; i < vector_numbers; ++i) {
          float y = fmaf(number_of(x[k], i), scale[i], shift[i]);
          if (pass.shortcut != nullptr) y += number_of(shortcut[k], i);
          const bool passes = !(y <= 0);
          bits = static_cast<std::uint8_t>(bits | (passes ? 1 << i : 0));
          results[i] = pass.relu != 0 && !passes ? 0.0F : y;
        }
        store_vector<format>(pass.y, own.at(row), results);
        if (pass.mask != nullptr) pass.mask[own.at(row)] = bits;
      });
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE void write_rows_thread(const NormBackward& pass, KernelPlace place) {
  const NormThread own = norm_thread(pass.geometry, place);
  if (own.first >= own.end) return;
  const std::int32_t channels = pass.geometry.channels;
  float a[vector_numbers];
  float b[vector_numbers];
  float constant[vector_numbers];
  load_channels(pass.factors, own, a);
  load_channels(pass.factors + channels, own, b);
  load_channels(pass.factors + 2 * channels, own, constant);
  const void* const gradient = pass.g != nullptr ? pass.g : pass.gradient;
  const std::uint8_t* const mask = pass.g != nullptr ? nullptr : pass.mask;
  NormBackwardRow<format> rows[norm_rows_at_once];
  for_each_row<norm_rows_at_once>(
      own,
      [&](std::int64_t row, int k) {
        rows[k] = load_row<format>(pass, gradient, mask, own.at(row));
      },
      [&](std::int64_t row, int k) {
        float of_x[vector_numbers];
        for (int i = 0; i < vector_numbers; ++i) {
          of_x[i] = fmaf(a[i], rows[k].g(i), fmaf(b[i], number_of(rows[k].x, i), constant[i]));
        }
        store_vector<format>(pass.x_gradient, own.at(row), of_x);
      });
}

}  // namespace ddprun::trainer
