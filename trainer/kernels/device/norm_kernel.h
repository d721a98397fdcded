// Batch normalisation with an added shortcut and ReLU, of activations in channels-last order:
//
//   y = relu(scale[c] * x + shift[c] + shortcut)     scale = weight / deviation
//   gx = a[c] * g + b[c] * x + k[c]                  g = gradient of y where y > 0, else 0
//
// Forward and backward are three launches each: sums of parts of the rows, what follows from them
// for each channel, and one pass over all elements. Memory is what they wait for: each reads its
// inputs twice and writes its results once, and of y backward reads one bit an element.
//
// A row is a pixel with all its channels. A thread has eight channels side by side, which are 16
// bytes of a 16-bit format, of every so many-th row of its block's part. The sums have one order
// for each shape, whatever device they run on.
// A core: no sockets, threads or clock.
#pragma once

#include <cmath>
#include <cstdint>

#include "trainer/kernels/device/number_format.h"
#include "trainer/kernels/device/segments.h"

namespace ddprun::trainer {

inline constexpr std::int32_t norm_vector = 8;              // Channels of a thread; bits of a byte.
inline constexpr std::int32_t norm_sums = 2 * norm_vector;  // Of a thread: two for each channel.
inline constexpr std::int32_t norm_rows_at_once = 4;        // Reads of a thread under way.
// Blocks of a launch: four for each multiprocessor of an H100, which keeps its memory busy.
inline constexpr std::int64_t norm_blocks_max = 528;
// Threads that add up the parts of one channel.
inline constexpr std::int32_t norm_part_lanes =
    static_cast<std::int32_t>(kernel_threads) / norm_vector;

// How the blocks share out the memory.
struct NormGeometry {
  std::int64_t rows = 0;       // N * H * W, at least 2.
  std::int32_t channels = 0;   // A multiple of norm_vector.
  std::int32_t lanes = 0;      // Threads of a block along the channels,
  std::int32_t lines = 0;      // and along the rows.
  std::int32_t tiles = 0;      // Blocks along the channels,
  std::int64_t parts = 0;      // and along the rows.
  std::int64_t part_rows = 0;  // The last part may have fewer.
};

inline NormGeometry norm_geometry(std::int64_t rows, std::int32_t channels) {
  const auto divide_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  constexpr std::int32_t lanes_max = 32;
  const std::int32_t vectors = channels / norm_vector;
  NormGeometry geometry{.rows = rows, .channels = channels};
  geometry.tiles = static_cast<std::int32_t>(divide_up(vectors, lanes_max));
  geometry.lanes = static_cast<std::int32_t>(divide_up(vectors, geometry.tiles));
  geometry.lines = static_cast<std::int32_t>(kernel_threads) / geometry.lanes;
  const std::int64_t parts_max =
      norm_blocks_max / geometry.tiles > 1 ? norm_blocks_max / geometry.tiles : 1;
  const std::int64_t of_full_threads =
      divide_up(rows, std::int64_t{geometry.lines} * norm_rows_at_once);
  geometry.part_rows = divide_up(rows, of_full_threads < parts_max ? of_full_threads : parts_max);
  geometry.parts = divide_up(rows, geometry.part_rows);
  return geometry;
}

DDPRUN_HOST_DEVICE inline std::int64_t norm_blocks(const NormGeometry& geometry) {
  return geometry.parts * geometry.tiles;
}

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
  const void* x = nullptr;
  const std::uint8_t* mask = nullptr;  // Null: there was no ReLU.
  const float* statistics = nullptr;
  const float* weight = nullptr;
  float* partial = nullptr;  // (parts, 2, channels)
  float* factors = nullptr;  // (3, channels): a, b, k.
  float* weight_gradient = nullptr;
  float* bias_gradient = nullptr;
  void* x_gradient = nullptr;
  void* shortcut_gradient = nullptr;  // Null: not wanted.
};

// --- Eight channels at a time -------------------------------------------------------------------

struct alignas(16) NormWords {
  std::uint32_t word[4];
};

// As it lies in memory.
template <NumberFormat format>
struct NormVector {
  NormWords words[format == NumberFormat::Float32 ? 2 : 1];
};

template <NumberFormat format>
DDPRUN_HOST_DEVICE NormVector<format> load_vector(const void* values, std::int64_t vector) {
  return static_cast<const NormVector<format>*>(values)[vector];
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE float number_of(const NormVector<format>& vector, int i) {
  if constexpr (format == NumberFormat::Float32) {
    return std::bit_cast<float>(vector.words[i / 4].word[i % 4]);
  } else {
    const std::uint32_t pair = vector.words[0].word[i / 2];
    return widen16(static_cast<std::uint16_t>(i % 2 == 0 ? pair : pair >> 16), format);
  }
}

template <NumberFormat format>
DDPRUN_HOST_DEVICE void store_vector(void* values, std::int64_t vector,
                                     const float (&from)[norm_vector]) {
  NormVector<format> to;
  if constexpr (format == NumberFormat::Float32) {
    for (int i = 0; i < norm_vector; ++i) {
      to.words[i / 4].word[i % 4] = std::bit_cast<std::uint32_t>(from[i]);
    }
  } else {
    for (int k = 0; k < norm_vector / 2; ++k) {
      to.words[0].word[k] = std::uint32_t{narrow16(from[2 * k], format)} |
                            std::uint32_t{narrow16(from[2 * k + 1], format)} << 16;
    }
  }
  static_cast<NormVector<format>*>(values)[vector] = to;
}

// Where a thread works: in each of its rows on one vector.
struct NormThread {
  std::int64_t first = 0;  // Row; none before `end` for a thread that has nothing to do.
  std::int64_t end = 0;
  std::int64_t step = 0;
  std::int64_t vectors = 0;  // Of a row.
  std::int32_t vector = 0;

  DDPRUN_HOST_DEVICE std::int64_t at(std::int64_t row) const { return row * vectors + vector; }
};

DDPRUN_HOST_DEVICE inline NormThread norm_thread(const NormGeometry& geometry, KernelPlace place) {
  const std::int32_t thread = static_cast<std::int32_t>(place.thread);
  const std::int64_t part = place.block / geometry.tiles;
  const std::int64_t tile = place.block % geometry.tiles;
  const std::int32_t line = thread / geometry.lanes;
  NormThread own{.step = geometry.lines, .vectors = geometry.channels / norm_vector};
  own.vector = static_cast<std::int32_t>(tile * geometry.lanes + thread % geometry.lanes);
  if (line >= geometry.lines || own.vector >= own.vectors) return own;
  own.first = part * geometry.part_rows + line;
  own.end = (part + 1) * geometry.part_rows;
  if (own.end > geometry.rows) own.end = geometry.rows;
  return own;
}

// load(row, k) for the k-th of some rows at once, and then use(row, k) of each: the device waits
// for memory once for all of them. What is left over at the end goes one by one.
template <typename Load, typename Use>
DDPRUN_HOST_DEVICE void for_each_row(const NormThread& own, Load load, Use use) {
  std::int64_t row = own.first;
  for (; row + (norm_rows_at_once - 1) * own.step < own.end; row += norm_rows_at_once * own.step) {
    for (int k = 0; k < norm_rows_at_once; ++k) load(row + k * own.step, k);
    for (int k = 0; k < norm_rows_at_once; ++k) use(row + k * own.step, k);
  }
  for (; row < own.end; row += own.step) {
    load(row, 0);
    use(row, 0);
  }
}

// --- Sums of the parts --------------------------------------------------------------------------

// `shared`: norm_sums rows of kernel_threads, of the block. All threads write, then all fold.
DDPRUN_HOST_DEVICE inline void share_sums(const float (&first)[norm_vector],
                                          const float (&second)[norm_vector], KernelPlace place,
                                          float* shared) {
  for (int k = 0; k < norm_vector; ++k) {
    shared[k * kernel_threads + place.thread] = first[k];
    shared[(norm_vector + k) * kernel_threads + place.thread] = second[k];
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
    if (vector * norm_vector >= geometry.channels) continue;
    float sum = 0;
    for (std::int32_t line = 0; line < geometry.lines; ++line) {
      sum += shared[k * static_cast<std::int32_t>(kernel_threads) + line * geometry.lanes + lane];
    }
    const std::int32_t channel = vector * norm_vector + k % norm_vector;
    partial[(2 * part + k / norm_vector) * geometry.channels + channel] = sum;
  }
}

// Of x around the channel's first value: around 0, squares would lose the variance in a large mean.
template <NumberFormat format>
DDPRUN_HOST_DEVICE void norm_sums_thread(const NormForward& pass, KernelPlace place,
                                         float* shared) {
  const NormThread own = norm_thread(pass.geometry, place);
  float first[norm_vector] = {};
  float second[norm_vector] = {};
  if (own.first < own.end) {
    const NormVector<format> of_first_row = load_vector<format>(pass.x, own.vector);
    float center[norm_vector];
    for (int i = 0; i < norm_vector; ++i) center[i] = number_of(of_first_row, i);
    NormVector<format> x[norm_rows_at_once];
    for_each_row(
        own, [&](std::int64_t row, int k) { x[k] = load_vector<format>(pass.x, own.at(row)); },
        [&](std::int64_t, int k) {
          for (int i = 0; i < norm_vector; ++i) {
            const float away = number_of(x[k], i) - center[i];
            first[i] += away;
            second[i] = fmaf(away, away, second[i]);
          }
        });
  }
  share_sums(first, second, place, shared);
}

// 1 where y was positive; a NaN counts as such, as in LibTorch's ReLU.
DDPRUN_HOST_DEVICE inline float masked(float gradient, std::uint8_t bits, int i) {
  return (bits >> i & 1) != 0 ? gradient : 0.0F;
}

// Of g, and of g times x's distance from the mean.
template <NumberFormat format>
DDPRUN_HOST_DEVICE void norm_gradient_sums_thread(const NormBackward& pass, KernelPlace place,
                                                  float* shared) {
  const NormThread own = norm_thread(pass.geometry, place);
  float first[norm_vector] = {};
  float second[norm_vector] = {};
  if (own.first < own.end) {
    const float* const mean = pass.statistics + own.vector * norm_vector;
    float center[norm_vector];
    for (int i = 0; i < norm_vector; ++i) center[i] = mean[i];
    NormVector<format> x[norm_rows_at_once];
    NormVector<format> gradient[norm_rows_at_once];
    std::uint8_t bits[norm_rows_at_once];
    for_each_row(
        own,
        [&](std::int64_t row, int k) {
          x[k] = load_vector<format>(pass.x, own.at(row));
          gradient[k] = load_vector<format>(pass.gradient, own.at(row));
          bits[k] = pass.mask != nullptr ? pass.mask[own.at(row)] : 0xff;
        },
        [&](std::int64_t, int k) {
          for (int i = 0; i < norm_vector; ++i) {
            const float g = masked(number_of(gradient[k], i), bits[k], i);
            first[i] += g;
            second[i] = fmaf(g, number_of(x[k], i) - center[i], second[i]);
          }
        });
  }
  share_sums(first, second, place, shared);
}

// --- What follows from them ---------------------------------------------------------------------

// A block has norm_vector channels. `shared`: two rows of kernel_threads.
DDPRUN_HOST_DEVICE inline std::int32_t norm_channel(KernelPlace place) {
  return static_cast<std::int32_t>(place.block) * norm_vector +
         static_cast<std::int32_t>(place.thread) % norm_vector;
}

DDPRUN_HOST_DEVICE inline void add_parts_thread(const NormGeometry& geometry, const float* partial,
                                                KernelPlace place, double* shared) {
  const std::int32_t channel = norm_channel(place);
  double first = 0;
  double second = 0;
  for (std::int64_t part = place.thread / norm_vector; part < geometry.parts;
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
    sum += shared[lane * norm_vector + static_cast<std::int32_t>(thread)];
  }
  return sum;
}

// The first norm_vector threads of a block; the running statistics take up the batch's.
DDPRUN_HOST_DEVICE inline void norm_statistics_thread(const NormForward& pass, KernelPlace place,
                                                      const double* shared) {
  if (place.thread >= norm_vector) return;
  const std::int32_t channels = pass.geometry.channels;
  const std::int32_t channel = norm_channel(place);
  const auto count = static_cast<double>(pass.geometry.rows);
  const double sum = add_lanes(shared, place.thread);
  const double from_center = sum / count;
  const double squares = add_lanes(shared + kernel_threads, place.thread) - sum * from_center;
  const double mean = static_cast<double>(load_number(pass.x, channel, pass.format)) + from_center;
  const double variance = squares < 0 ? 0 : squares / count;  // A NaN stays one.
  const auto inverse = static_cast<float>(1 / sqrt(variance + pass.epsilon));
  const float scale = pass.weight[channel] * inverse;
  pass.statistics[channel] = static_cast<float>(mean);
  pass.statistics[channels + channel] = inverse;
  pass.statistics[2 * channels + channel] = scale;
  pass.statistics[3 * channels + channel] = pass.bias[channel] - static_cast<float>(mean) * scale;
  const auto follow = [&](float& running, double batch) {
    running = static_cast<float>((1 - pass.momentum) * static_cast<double>(running) +
                                 pass.momentum * batch);
  };
  follow(pass.running_mean[channel], mean);
  follow(pass.running_variance[channel], variance * count / (count - 1));
  if (channel == 0) *pass.batches += 1;
}

DDPRUN_HOST_DEVICE inline void norm_factors_thread(const NormBackward& pass, KernelPlace place,
                                                   const double* shared) {
  if (place.thread >= norm_vector) return;
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
DDPRUN_HOST_DEVICE void normalize_rows_thread(const NormForward& pass, KernelPlace place) {
  const NormThread own = norm_thread(pass.geometry, place);
  if (own.first >= own.end) return;
  const std::int32_t channels = pass.geometry.channels;
  float scale[norm_vector];
  float shift[norm_vector];
  for (int i = 0; i < norm_vector; ++i) {
    scale[i] = pass.statistics[2 * channels + own.vector * norm_vector + i];
    shift[i] = pass.statistics[3 * channels + own.vector * norm_vector + i];
  }
  NormVector<format> x[norm_rows_at_once];
  NormVector<format> shortcut[norm_rows_at_once];
  for_each_row(
      own,
      [&](std::int64_t row, int k) {
        x[k] = load_vector<format>(pass.x, own.at(row));
        if (pass.shortcut != nullptr) shortcut[k] = load_vector<format>(pass.shortcut, own.at(row));
      },
      [&](std::int64_t row, int k) {
        float results[norm_vector];
        std::uint8_t bits = 0;
        for (int i = 0; i < norm_vector; ++i) {
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
DDPRUN_HOST_DEVICE void norm_gradient_thread(const NormBackward& pass, KernelPlace place) {
  const NormThread own = norm_thread(pass.geometry, place);
  if (own.first >= own.end) return;
  const std::int32_t channels = pass.geometry.channels;
  float a[norm_vector];
  float b[norm_vector];
  float constant[norm_vector];
  for (int i = 0; i < norm_vector; ++i) {
    const std::int32_t channel = own.vector * norm_vector + i;
    a[i] = pass.factors[channel];
    b[i] = pass.factors[channels + channel];
    constant[i] = pass.factors[2 * channels + channel];
  }
  NormVector<format> x[norm_rows_at_once];
  NormVector<format> gradient[norm_rows_at_once];
  std::uint8_t bits[norm_rows_at_once];
  for_each_row(
      own,
      [&](std::int64_t row, int k) {
        x[k] = load_vector<format>(pass.x, own.at(row));
        gradient[k] = load_vector<format>(pass.gradient, own.at(row));
        bits[k] = pass.mask != nullptr ? pass.mask[own.at(row)] : 0xff;
      },
      [&](std::int64_t row, int k) {
        float of_x[norm_vector];
        float of_shortcut[norm_vector];
        for (int i = 0; i < norm_vector; ++i) {
          of_shortcut[i] = masked(number_of(gradient[k], i), bits[k], i);
          of_x[i] = fmaf(a[i], of_shortcut[i], fmaf(b[i], number_of(x[k], i), constant[i]));
        }
        store_vector<format>(pass.x_gradient, own.at(row), of_x);
        if (pass.shortcut_gradient != nullptr) {
          store_vector<format>(pass.shortcut_gradient, own.at(row), of_shortcut);
        }
      });
}

}  // namespace ddprun::trainer
