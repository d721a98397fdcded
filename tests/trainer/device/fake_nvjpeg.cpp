// libnvjpeg.so.13 without a GPU, as far as trainer/device/nvjpeg.cpp calls it: decodes by libjpeg
// into memory of the host. One mutex, since real handles are of one thread each, and what is told
// is not.
#include "tests/trainer/device/fake_nvjpeg.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "trainer/data/images/jpeg_image.h"
#include "trainer/data_error.h"
#include "trainer/device/nvjpeg.h"

using namespace ddprun::trainer;

namespace {

constexpr int success = 0, invalid_parameter = 2, bad_jpeg = 3, not_supported = 4,
              execution_failed = 6, architecture_mismatch = 7;

std::mutex mutex;
testing::FakeNvJpeg told;

struct Handle {};
struct State {
  int batch_size = 0;
};
struct Header {
  ImageSize size;
};

template <typename T>
int make(void** made) {
  const std::lock_guard lock(mutex);
  *made = new T;
  ++told.open;
  return success;
}

template <typename T>
int destroy(void* made) {
  const std::lock_guard lock(mutex);
  delete static_cast<T*>(made);
  --told.open;
  return success;
}

int decode_one(const std::uint8_t* file, std::size_t bytes, const NvJpegImage& image) {
  try {
    JpegDecoder decoder;
    const ImageSize size = decoder.open({file, bytes});
    const ImageView view = decoder.decode({.height = size.height, .width = size.width}).pixels;
    for (std::int64_t row = 0; row < size.height; ++row) {
      std::memcpy(image.channel[0] + static_cast<std::size_t>(row) * image.row_bytes[0],
                  view.at(0, row, 0), static_cast<std::size_t>(3 * size.width));
    }
    return success;
  } catch (const ImageError&) {
    return bad_jpeg;
  }
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED testing::FakeNvJpeg* ddprun_fake_nvjpeg() { return &told; }

EXPORTED int nvjpegCreateEx(int backend, void*, void*, unsigned flags, void** handle) {
  if (flags != 1U << 5) return invalid_parameter;
  {
    const std::lock_guard lock(mutex);
    if (!told.has_gpu) return execution_failed;
    if (backend == 3 && !told.has_engines) return architecture_mismatch;
    if (backend == 3 && told.engines_status != 0) return told.engines_status;
  }
  return backend == 3 || backend == 2 ? make<Handle>(handle) : invalid_parameter;
}
EXPORTED int nvjpegDestroy(void* handle) { return destroy<Handle>(handle); }
EXPORTED int nvjpegJpegStateCreate(void*, void** state) { return make<State>(state); }
EXPORTED int nvjpegJpegStateDestroy(void* state) { return destroy<State>(state); }
EXPORTED int nvjpegJpegStreamCreate(void*, void** header) { return make<Header>(header); }
EXPORTED int nvjpegJpegStreamDestroy(void* header) { return destroy<Header>(header); }

EXPORTED int nvjpegJpegStreamParseHeader(void*, const unsigned char* file, std::size_t bytes,
                                         void* header) {
  try {
    JpegDecoder decoder;
    static_cast<Header*>(header)->size = decoder.open({file, bytes});
    return success;
  } catch (const ImageError&) {
    return bad_jpeg;
  }
}

EXPORTED int nvjpegDecodeBatchedSupported(void*, void* header, int* reason) {
  const std::lock_guard lock(mutex);
  *reason = static_cast<Header*>(header)->size.width > told.width_max ? not_supported : 0;
  return success;
}

EXPORTED int nvjpegDecodeBatchedInitialize(void*, void* state, int batch_size, int threads,
                                           int format) {
  const std::lock_guard lock(mutex);
  if (batch_size < 1 || threads < 1 || format != 5) return invalid_parameter;
  static_cast<State*>(state)->batch_size = batch_size;
  ++told.prepared;
  return success;
}

EXPORTED int nvjpegDecodeBatched(void*, void* state, const unsigned char* const* files,
                                 const std::size_t* bytes, NvJpegImage* images, void*) {
  const int count = static_cast<State*>(state)->batch_size;
  {
    const std::lock_guard lock(mutex);
    if (count == 0) return invalid_parameter;
    if (told.refused_batches > 0) {
      --told.refused_batches;
      static_cast<State*>(state)->batch_size = 0;
      return execution_failed;
    }
    ++told.batches;
    told.files += count;
  }
  for (int i = 0; i < count; ++i) {
    if (const int status = decode_one(files[i], bytes[i], images[i]); status != success) {
      return status;
    }
  }
  return success;
}
