// Declared here and not taken from nvjpeg.h: `train` is built where there is no CUDA, and the
// library comes apart from it as well. What is called has been there since CUDA 12.1.
#include "trainer/device/nvjpeg.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace ddprun::trainer {
namespace {

constexpr int success = 0;
constexpr int architecture_mismatch = 7;
constexpr int interleaved_rgb = 5;                  // NVJPEG_OUTPUT_RGBI
constexpr int gpu_backend = 2, engine_backend = 3;  // NVJPEG_BACKEND_GPU_HYBRID, _HARDWARE
constexpr unsigned smooth_chroma = 1U << 5;         // NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION

std::vector<std::string> library_names() {
  const char* const named = std::getenv("DDPRUN_NVJPEG");
  if (named != nullptr && *named != '\0') return {named};
  return {"libnvjpeg.so.13", "libnvjpeg.so.12"};
}

std::string name_of(int status) {
  constexpr const char* names[] = {"success",
                                   "not initialized",
                                   "invalid parameter",
                                   "bad JPEG",
                                   "JPEG not supported",
                                   "allocator failure",
                                   "execution failed",
                                   "architecture mismatch",
                                   "internal error",
                                   "implementation not supported",
                                   "incomplete bitstream"};
  const bool is_known = status >= 0 && status < static_cast<int>(std::size(names));
  return is_known ? names[status] : "status " + std::to_string(status);
}

struct Library {
  void* opened = nullptr;
  int (*create)(int backend, void* device_memory, void* pinned_memory, unsigned flags,
                void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*state_create)(void* handle, void** state) = nullptr;
  int (*state_destroy)(void* state) = nullptr;
  int (*header_create)(void* handle, void** header) = nullptr;
  int (*header_destroy)(void* header) = nullptr;
  int (*header_parse)(void* handle, const std::uint8_t* file, std::size_t bytes,
                      void* header) = nullptr;
  int (*supported)(void* handle, void* header, int* not_supported) = nullptr;
  int (*prepare)(void* handle, void* state, int batch_size, int threads, int format) = nullptr;
  int (*decode)(void* handle, void* state, const std::uint8_t* const* files,
                const std::size_t* bytes, NvJpegImage* images, void* stream) = nullptr;
};

template <class Function>
void find(Library& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.opened, name));
  if (function == nullptr) {
    throw NvJpegError(std::string("nvJPEG has no ") + name + ": it is older than CUDA 12.1's");
  }
}

Library load() {
  Library library;
  std::string reason;
  for (const std::string& name : library_names()) {
    // Never closed: NVIDIA's libraries leave threads and exit handlers behind.
    library.opened = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.opened != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  if (library.opened == nullptr) {
    throw NvJpegError("nvJPEG cannot be loaded: " + reason +
                      "; it is part of the CUDA toolkit, and of the Python package nvidia-nvjpeg: "
                      "put its folder into LD_LIBRARY_PATH, or name the file in DDPRUN_NVJPEG");
  }
  find(library, "nvjpegCreateEx", library.create);
  find(library, "nvjpegDestroy", library.destroy);
  find(library, "nvjpegJpegStateCreate", library.state_create);
  find(library, "nvjpegJpegStateDestroy", library.state_destroy);
  find(library, "nvjpegJpegStreamCreate", library.header_create);
  find(library, "nvjpegJpegStreamDestroy", library.header_destroy);
  find(library, "nvjpegJpegStreamParseHeader", library.header_parse);
  find(library, "nvjpegDecodeBatchedSupported", library.supported);
  find(library, "nvjpegDecodeBatchedInitialize", library.prepare);
  find(library, "nvjpegDecodeBatched", library.decode);
  return library;
}

// One that could not be loaded is tried again.
const Library& nvjpeg() {
  static const Library library = load();
  return library;
}

void check(int status, const char* what) {
  if (status != success)
    throw NvJpegError(std::string("nvJPEG cannot ") + what + ": " + name_of(status));
}

}  // namespace

NvJpeg::NvJpeg() {
  const Library& library = nvjpeg();
  const int engines = library.create(engine_backend, nullptr, nullptr, smooth_chroma, &handle_);
  if (engines != success) {
    why_no_engines_ = engines == architecture_mismatch
                          ? "this GPU has no JPEG engines"
                          : "its JPEG engines cannot be used: " + name_of(engines);
    check(library.create(gpu_backend, nullptr, nullptr, smooth_chroma, &handle_),
          "be used on this GPU");
  }
  int status = library.state_create(handle_, &state_);
  if (status == success) status = library.header_create(handle_, &header_);
  if (status == success) return;
  if (state_ != nullptr) library.state_destroy(state_);
  library.destroy(handle_);
  check(status, "begin");
}

NvJpeg::~NvJpeg() {
  const Library& library = nvjpeg();
  library.header_destroy(header_);
  library.state_destroy(state_);
  library.destroy(handle_);
}

bool NvJpeg::reads(std::span<const std::uint8_t> file) {
  const Library& library = nvjpeg();
  int not_supported = 1;  // 0 says that it is.
  return library.header_parse(handle_, file.data(), file.size(), header_) == success &&
         library.supported(handle_, header_, &not_supported) == success && not_supported == 0;
}

void NvJpeg::decode(const std::vector<std::span<const std::uint8_t>>& files,
                    std::vector<NvJpegImage>& images, void* stream) {
  const Library& library = nvjpeg();
  std::vector<const std::uint8_t*> data;
  std::vector<std::size_t> bytes;
  for (const auto& file : files) {
    data.push_back(file.data());
    bytes.push_back(file.size());
  }
  if (batch_size_ != files.size()) {
    batch_size_ = 0;
    // Where its processors help they are as many as there are threads of the loader, each with a
    // decoder of its own.
    check(library.prepare(handle_, state_, static_cast<int>(files.size()), /*threads=*/1,
                          interleaved_rgb),
          "prepare for a batch");
    batch_size_ = files.size();
  }
  const int status =
      library.decode(handle_, state_, data.data(), bytes.data(), images.data(), stream);
  if (status != success) batch_size_ = 0;  // To be prepared again, its documentation says.
  check(status, "decode a batch");
}

}  // namespace ddprun::trainer
