// In which order the work is done, and by which thread: nothing else is decided here, and no sum
// depends on it.
#include "trainer/models/winograd_conv.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>

#include "trainer/kernels/winograd/winograd.h"
#include "trainer/models/dense_memory.h"
#include "trainer/models/parallel_parts.h"
#include "worker/torch/gradient_memory.h"

namespace ddprun::trainer {
namespace {

// Weights up to this size, transformed, are transformed once, and the tiles block by block, so that
// a block stays in the second cache. Larger ones (512 x 512 channels: 37 MB) are transformed in
// pieces that stay there, and the tiles are kept; also where there are few tiles.
constexpr std::int64_t kept_weights_bytes_max = 4 << 20;
constexpr std::int64_t block_tiles = 48;

// So many tiles are in memory at a time where all threads read them. Fewer where there are few
// channels: then they stay near the second cache, and there are few sums to add to each time.
constexpr std::int64_t shared_tiles = 128;
constexpr std::int64_t shared_tiles_few_channels = 64;
constexpr std::int64_t few_channels = 128;

// A tile of 16 pixels costs 36 products; the 4 pixels of a quarter cost as many without tiles.
// Measured with tests/trainer/models/measure_winograd.cpp: images of 2 x 2 gain 1.2 to 1.6 times,
// one pixel loses; 8 images of 2 x 2 gain, one of them does not make up for the transformed
// weights.
constexpr std::int64_t pixels_min = 32;

// oneDNN's convolutions of bfloat16 need half as long where the processor multiplies it, ours as
// long as in float32: images of 2 x 2 and 16 channels lose, 32 channels gain 1.2 times, others
// more.
constexpr std::int64_t bfloat16_channels_min = 32;

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

WinogradShape shape_of(const torch::Tensor& x, const torch::Tensor& weight) {
  return {x.size(0), x.size(2), x.size(3), weight.size(1), weight.size(0)};
}

// Floats, whose values are undefined.
class Buffer {
 public:
  explicit Buffer(std::int64_t size) : memory_(torch::empty({size})) {}
  float* data() const { return memory_.data_ptr<float>(); }

 private:
  torch::Tensor memory_;
};

// work(range) for ranges that cover 0 .. count-1.
template <typename Work>
void for_ranges(std::int64_t count, const Work& work) {
  run_parallel(count, [&](std::int64_t begin, std::int64_t end) { work({begin, end}); });
}

// work(tiles) for one part of the tiles after the other.
template <typename Work>
void for_parts(std::int64_t tiles, std::int64_t size, const Work& work) {
  for (std::int64_t begin = 0; begin < tiles; begin += size) {
    work(WinogradRange{begin, std::min(begin + size, tiles)});
  }
}

// In all of these `Value`, of the images, is float or BFloat16.

template <typename Value>
void convolve_by_tiles(const WinogradShape& shape, WinogradWeights weights, const Value* input,
                       Value* result) {
  const WinogradRange strips{0, winograd_strips(shape.out_channels)};
  const Buffer transformed(winograd_weights_size(shape));
  for_ranges(strips.end, [&](WinogradRange some) {
    winograd_transform_weights(shape, some, weights, transformed.data());
  });
  weights.transformed = transformed.data();

  const std::int64_t size = std::min(block_tiles, shape.tiles());
  for_ranges((shape.tiles() + size - 1) / size, [&](WinogradRange blocks) {
    const Buffer tiles(winograd_tiles_size(size, shape.in_channels));
    const Buffer scratch(winograd_scratch_size(shape, size));
    const std::int64_t end = std::min(blocks.end * size, shape.tiles());
    for (std::int64_t begin = blocks.begin * size; begin < end; begin += size) {
      const WinogradRange block{begin, std::min(begin + size, end)};
      winograd_transform_input(shape, block, block, input, tiles.data());
      winograd_multiply(shape, block, strips, tiles.data(), weights, result, scratch.data());
    }
  });
}

template <typename Value>
void convolve_by_strips(const WinogradShape& shape, const WinogradWeights& weights,
                        const Value* input, Value* result) {
  const std::int64_t size = std::min(shared_tiles, shape.tiles());
  const Buffer tiles(winograd_tiles_size(size, shape.in_channels));
  for_parts(shape.tiles(), size, [&](WinogradRange part) {
    for_ranges(part.size(), [&](WinogradRange some) {
      winograd_transform_input(shape, part, {part.begin + some.begin, part.begin + some.end}, input,
                               tiles.data());
    });
    for_ranges(winograd_strips(shape.out_channels), [&](WinogradRange strips) {
      const Buffer scratch(winograd_scratch_size(shape, part.size()));
      winograd_multiply(shape, part, strips, tiles.data(), weights, result, scratch.data());
    });
  });
}

void convolve(const WinogradShape& shape, const WinogradWeights& weights,
              const torch::Tensor& input, const torch::Tensor& result) {
  const bool by_tiles =
      winograd_weights_size(shape) * 4 <= kept_weights_bytes_max && shape.tiles() > shared_tiles;
  with_value_type(input, [&](auto value) {
    using Value = decltype(value);
    const auto* from = values<const Value>(input);
    auto* to = values<Value>(result);
    by_tiles ? convolve_by_tiles(shape, weights, from, to)
             : convolve_by_strips(shape, weights, from, to);
  });
}

template <typename Value>
void transform_both(const WinogradShape& shape, WinogradRange part, const Value* input,
                    const Value* gradient, float* inputs, float* gradients) {
  for_ranges(part.size(), [&](WinogradRange some) {
    const WinogradRange tiles{part.begin + some.begin, part.begin + some.end};
    winograd_transform_input(shape, part, tiles, input, inputs);
    winograd_transform_gradient(shape, part, tiles, gradient, gradients);
  });
}

// All tiles are in memory, so each block of sums can become gradients at once.
void gradient_in_one_part(const WinogradShape& shape, const float* inputs, const float* gradients,
                          float* weight_gradient) {
  for_ranges(winograd_gradient_blocks(shape), [&](WinogradRange blocks) {
    const Buffer sums(winograd_gradient_size(shape));
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      winograd_add_products(shape, shape.tiles(), block, {0, winograd_positions}, inputs, gradients,
                            /*first=*/true, sums.data());
      winograd_finish_gradient(shape, block, sums.data(), weight_gradient);
    }
  });
}

template <typename Value>
void gradient_of_weights(const WinogradShape& shape, const Value* input, const Value* gradient,
                         float* weight_gradient) {
  const bool few = shape.in_channels * shape.out_channels <= few_channels * few_channels;
  const std::int64_t size = std::min(few ? shared_tiles_few_channels : shared_tiles, shape.tiles());
  const Buffer inputs(winograd_tiles_size(size, shape.in_channels));
  const Buffer gradients(winograd_tiles_size(size, shape.out_channels));
  if (size == shape.tiles()) {
    transform_both(shape, {0, size}, input, gradient, inputs.data(), gradients.data());
    gradient_in_one_part(shape, inputs.data(), gradients.data(), weight_gradient);
    return;
  }
  const std::int64_t blocks = winograd_gradient_blocks(shape);
  const std::int64_t block_size = winograd_gradient_size(shape);
  const Buffer sums(blocks * block_size);
  for_parts(shape.tiles(), size, [&](WinogradRange part) {
    transform_both(shape, part, input, gradient, inputs.data(), gradients.data());
    for_ranges(blocks * winograd_positions, [&](WinogradRange products) {
      for (std::int64_t i = products.begin; i < products.end; ++i) {
        const std::int64_t block = i / winograd_positions, position = i % winograd_positions;
        winograd_add_products(shape, part.size(), block, {position, position + 1}, inputs.data(),
                              gradients.data(), part.begin == 0, sums.data() + block * block_size);
      }
    });
  });
  for_ranges(blocks, [&](WinogradRange some) {
    for (std::int64_t block = some.begin; block < some.end; ++block) {
      winograd_finish_gradient(shape, block, sums.data() + block * block_size, weight_gradient);
    }
  });
}

class WinogradConv : public torch::autograd::Function<WinogradConv> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    const WinogradShape shape = shape_of(x, weight);
    context->save_for_backward({x, weight});
    torch::Tensor y = torch::empty({shape.images, shape.out_channels, shape.height, shape.width},
                                   x.options(), channels_last);
    convolve(shape, {.weight = weight.data_ptr<float>()}, x, y);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1];
    const WinogradShape shape = shape_of(x, weight);
    const torch::Tensor gradient = gradients[0].contiguous(channels_last);
    torch::Tensor gx, gw;
    if (context->needs_input_grad(0)) {
      gx = torch::empty(x.sizes(), x.options(), channels_last);
      convolve(shape.reversed(), {.weight = weight.data_ptr<float>(), .reversed = true}, gradient,
               gx);
    }
    if (context->needs_input_grad(1)) {
      gw = worker::gradient_memory(weight);
      with_value_type(x, [&](auto value) {
        using Value = decltype(value);
        gradient_of_weights(shape, values<const Value>(x), values<const Value>(gradient),
                            gw.data_ptr<float>());
      });
    }
    return {gx, gw};
  }
};

bool is_possible(const torch::Tensor& x, const torch::Tensor& weight) {
  const auto is_image = [](const torch::Tensor& tensor) {
    return tensor.is_cpu() && tensor.dim() == 4;
  };
  return is_image(x) && is_image(weight) && weight.scalar_type() == torch::kFloat32 &&
         (x.scalar_type() == torch::kFloat32 || x.scalar_type() == torch::kBFloat16) &&
         weight.size(2) == 3 && weight.size(3) == 3 && x.size(1) == weight.size(1) &&
         winograd_fits(shape_of(x, weight));
}

}  // namespace

bool has_bfloat16_tiles() {
#if defined(__x86_64__)
  constexpr unsigned amx_bf16 = 1U << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & amx_bf16) != 0;
#else
  return false;
#endif
}

bool winograd_pays(const torch::Tensor& x, const torch::Tensor& weight) {
  if (!winograd_is_fast() || !is_possible(x, weight) || !x.is_contiguous(channels_last) ||
      !weight.is_contiguous(channels_last)) {
    return false;
  }
  const WinogradShape shape = shape_of(x, weight);
  const std::int64_t pixels = shape.height * shape.width;
  const std::int64_t tile_pixels = 16 * shape.tile_rows() * shape.tile_columns();
  const bool narrow = x.scalar_type() == torch::kBFloat16;
  if (narrow && (has_bfloat16_tiles() ||
                 std::min(shape.in_channels, shape.out_channels) < bfloat16_channels_min)) {
    return false;
  }
  return (narrow ? 2 : 4) * pixels >= tile_pixels && shape.images * pixels >= pixels_min;
}

torch::Tensor winograd_conv(const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(is_possible(x, weight),
              "winograd_conv: needs float32 or bfloat16 on the CPU, a 3 x 3 weight in float32 and "
              "channels in multiples of 16; got x ",
              x.sizes(), " of ", x.scalar_type(), " and weight ", weight.sizes(), " of ",
              weight.scalar_type(), "; ask winograd_pays() first");
  return WinogradConv::apply(x.contiguous(channels_last), weight.contiguous(channels_last));
}

}  // namespace ddprun::trainer
