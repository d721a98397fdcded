// nvJPEG, NVIDIA's decoder, as far as `train --device-jpeg` calls it: batches of JPEG files ->
// pixels in a GPU's memory, by the JPEG engines of an A100 or newer, by its kernels elsewhere.
// Protocol: https://docs.nvidia.com/cuda/nvjpeg/
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::trainer {

class NvJpegError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// NVIDIA's nvjpegImage_t. Of interleaved pixels only the first of each is used.
struct NvJpegImage {
  std::uint8_t* channel[4] = {};
  std::size_t row_bytes[4] = {};
};

// For one thread, with the device current on which it was made.
class NvJpeg {
 public:
  // Loads the library, or the file that $DDPRUN_NVJPEG names, when first asked for. Throws
  // NvJpegError, with what to do, where there is none or where it finds no GPU to decode on.
  NvJpeg();
  ~NvJpeg();
  NvJpeg(const NvJpeg&) = delete;
  NvJpeg& operator=(const NvJpeg&) = delete;

  // Whether engines of the GPU decode, and not its multiprocessors, which train.
  bool has_engines() const { return why_no_engines_.empty(); }
  const std::string& why_no_engines() const { return why_no_engines_; }  // "" where it has.

  // Whether decode() can read this file, as far as its header says.
  bool reads(std::span<const std::uint8_t> file);

  // Queues on `stream` what makes file i red, green and blue bytes in images[i]. The files must
  // stay until that is done. Throws NvJpegError: which file it was is not known.
  void decode(const std::vector<std::span<const std::uint8_t>>& files,
              std::vector<NvJpegImage>& images, void* stream);

 private:
  void* handle_ = nullptr;
  void* state_ = nullptr;
  void* header_ = nullptr;      // Of the file that reads() was asked about.
  std::size_t batch_size_ = 0;  // That state_ is prepared for.
  std::string why_no_engines_;
};

}  // namespace ddprun::trainer
