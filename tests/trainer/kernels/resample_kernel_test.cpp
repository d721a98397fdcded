// Boxes of images cut and resized by the kernel: the bytes of the loader's resampler, which are
// Pillow's, and on a GPU the bits of the loops.
#include "trainer/kernels/device/resample_kernel.h"

#include <random>

#include "tests/testing/catch.h"
#include "tests/trainer/kernels/device_memory.h"
#include "trainer/data/augment.h"
#include "trainer/data/images/resample.h"
#include "trainer/data/normalize.h"
#include "trainer/data/resample_plans.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using namespace ddprun::trainer::testing;

namespace {

struct Picture {
  ImageSize size;
  std::vector<std::uint8_t> pixels;
  SamplePlan plan;
};

// Larger, smaller, wider and higher than the sample, of one pixel, and of its very size; the noise
// shows each pixel that is not where it belongs.
std::vector<Picture> some_pictures(std::int64_t side) {
  std::mt19937 random(static_cast<unsigned>(side));
  std::vector<Picture> pictures;
  for (const ImageSize size : {ImageSize{90, 120}, ImageSize{7, 200}, ImageSize{200, 7},
                               ImageSize{1, 1}, ImageSize{side, side}, ImageSize{33, 32}}) {
    for (const bool crops : {false, true}) {
      Picture picture{.size = size, .pixels = {}, .plan = {}};
      for (std::int64_t i = 0; i < 3 * size.height * size.width; ++i) {
        picture.pixels.push_back(static_cast<std::uint8_t>(random()));
      }
      const AugmentOptions augment{
          .flip = true, .pad_crop = crops, .random_resized_crop = crops, .padding = 2};
      picture.plan = plan_sample(
          size, {.side = side, .resize_side = side + 3, .augment = augment},
          {.seed = 5, .epoch = 1, .sample = static_cast<std::int64_t>(pictures.size())});
      pictures.push_back(std::move(picture));
    }
  }
  // Made lower and wider, which is rounded in the other order.
  Picture odd{.size = {side + 9, side + 4}, .pixels = {}, .plan = {}};
  odd.pixels.resize(static_cast<std::size_t>(3 * odd.size.height * odd.size.width));
  for (std::uint8_t& byte : odd.pixels) byte = static_cast<std::uint8_t>(random());
  odd.plan.box_top = 3;
  odd.plan.box_left = 2;
  odd.plan.box = {side + 5, (side + 1) / 2};
  odd.plan.resized = {side, side};
  pictures.push_back(std::move(odd));
  return pictures;
}

// As SampleMaker makes it.
torch::Tensor by_the_loader(const std::vector<Picture>& pictures, std::int64_t side, bool last) {
  torch::Tensor batch = torch::empty({std::ssize(pictures), 3 * side * side}, torch::kUInt8);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const Picture& picture = pictures[i];
    const SamplePlan& plan = picture.plan;
    const std::int64_t row = 3 * picture.size.width;
    const ImageView box{picture.pixels.data() + plan.box_top * row + 3 * plan.box_left,
                        3,
                        plan.box.height,
                        plan.box.width,
                        1,
                        row,
                        3};
    Resampler resampler;
    const ImageView resized =
        resampler.resize(box,
                         {.bottom = static_cast<double>(plan.box.height),
                          .right = static_cast<double>(plan.box.width)},
                         plan.resized, {plan.window_top, plan.window_left, side, side});
    write_bytes(resized, {plan.shift_down, plan.shift_right, plan.flip}, last,
                batch[static_cast<std::int64_t>(i)].data_ptr<std::uint8_t>());
  }
  return batch;
}

// In reverse order, and with a place left out in front.
torch::Tensor by_the_kernel(torch::Device device, const std::vector<Picture>& pictures,
                            std::int64_t side, bool last) {
  ResamplePlans plans(side);
  std::vector<torch::Tensor> kept;
  for (std::size_t i = pictures.size(); i-- > 0;) {
    kept.push_back(bytes_on(device, pictures[i].pixels));
    plans.add(pictures[i].plan, static_cast<const std::uint8_t*>(kept.back().data_ptr()),
              3 * pictures[i].size.width, static_cast<std::int64_t>(i) + 1);
  }
  kept.push_back(bytes_on(device, plans.tables()));
  const auto images = plans.images(static_cast<const std::int32_t*>(kept.back().data_ptr()));
  const std::int64_t bytes = 3 * side * side;
  const Guarded out(device, torch::full({(std::ssize(pictures) + 1) * bytes}, 77), torch::kUInt8);
  const torch::Tensor told = bytes_on(device, images);
  run_kernel(step_kernels(device.is_cuda()).resample,
             ResampleBatch{.images = static_cast<const ResampledImage*>(told.data_ptr()),
                           .count = std::ssize(images),
                           .side = static_cast<std::int32_t>(side),
                           .channels_last = last ? 1 : 0,
                           .out = static_cast<std::uint8_t*>(out.own.data_ptr())},
             stream_of(device));
  wait_for(device);
  CHECK(out.whole());
  const torch::Tensor all = out.own.cpu().view({-1, bytes});
  CHECK((all[0] == 77).all().item<bool>());  // Of another image.
  return all.narrow(0, 1, std::ssize(pictures));
}

void check_kernel(torch::Device device) {
  for (const std::int64_t side : {1, 15, 16, 32, 67}) {
    const auto pictures = some_pictures(side);
    for (const bool last : {false, true}) {
      const torch::Tensor expected = by_the_loader(pictures, side, last);
      const torch::Tensor found = by_the_kernel(device, pictures, side, last);
      for (std::int64_t i = 0; i < expected.size(0); ++i) {
        INFO("picture " << i << ", " << side << " pixels, last: " << last);
        CHECK(torch::equal(found[i], expected[i]));
      }
    }
  }
}

}  // namespace

TEST_CASE("the resize kernel gives the loader's bytes", "[step-kernels][resample]") {
  check_kernel(torch::kCPU);
}

TEST_CASE("on a GPU the resize kernel gives the loader's bytes", "[step-kernels][resample][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  check_kernel(torch::kCUDA);
}
