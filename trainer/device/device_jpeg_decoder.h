// What a loader's thread makes a batch of JPEG files with on a GPU (--device-jpeg):
//
//   thread   read files, choose crops | batch n: copy, decode, resize on a stream of its own | wait
//   next()                                                                          batch n |
//   normalise
//
// The thread waits for its stream, so that files and tables need to stay no longer than its call,
// and whoever takes the batch need not know of it; batches follow each other closely by several
// threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/batch_loader.h"
#include "trainer/device/nvjpeg.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class DeviceJpegDecoder : public BatchDecoder {
 public:
  struct Options {
    torch::Device device = torch::kCPU;  // The CPU: in tests, with a library that decodes there.
    std::int64_t side = 0;               // Of samples, in pixels.
    bool channels_last = false;
    std::optional<c10::Stream> stream;  // Where it works; none on a CPU alone.
    // Called from the loader's threads for what has to be made by libjpeg.
    std::function<void(const std::string&)> warn;
  };

  // Throws NvJpegError.
  explicit DeviceJpegDecoder(Options options);
  ~DeviceJpegDecoder() override;
  DeviceJpegDecoder(const DeviceJpegDecoder&) = delete;
  DeviceJpegDecoder& operator=(const DeviceJpegDecoder&) = delete;

  void begin() override;
  bool take(std::int64_t place, std::span<const std::uint8_t> file, ImageSize size,
            const SamplePlan& plan) override;
  bool finish(Batch& batch) override;

 private:
  struct Taken {
    std::int64_t place = 0;
    std::size_t file_begin = 0, file_bytes = 0;  // In files_.
    ImageSize size;
    SamplePlan plan;
    // Of its pixels, in memory that has those of others behind: each begins as an allocation does.
    std::int64_t room_bytes() const { return (3 * size.height * size.width + 255) / 256 * 256; }
  };

  void decode_group(std::span<const Taken> group, const torch::Tensor& images);
  void copy_rest(const torch::Tensor& from, const torch::Tensor& to) const;

  const Options options_;
  std::optional<NvJpeg> nvjpeg_;     // Always there: it is made and ended on its device.
  std::vector<std::uint8_t> files_;  // One after the other.
  std::vector<Taken> taken_;
};

// Null, and told through `warn`, where nvJPEG is not to be had any more, as by an epoch that finds
// the GPU's memory full: the loader decodes.
std::unique_ptr<BatchDecoder> make_device_jpeg_decoder(DeviceJpegDecoder::Options options);

}  // namespace ddprun::trainer
