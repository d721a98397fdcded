// Opening the CUDA module and calling its entry point.
#include "worker/cuda_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace ddprun::worker {
namespace {

std::string module_path() {
  if (const char* path = std::getenv("DDPRUN_CUDA_MODULE"); path != nullptr && *path != '\0') {
    return path;
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "libddprun_cuda.so").string();
}

MakeNcclCommunicator* open_entry() {
  const std::string path = module_path();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw CommunicatorError("the CUDA module " + path +
                            " does not exist: build ddprun where a CUDA toolkit and NCCL are "
                            "found, or name the module in DDPRUN_CUDA_MODULE");
  }
  // Global, so that LibTorch's CUDA libraries can find each other's symbols.
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    throw CommunicatorError("the CUDA module cannot be loaded: " + std::string(::dlerror()) +
                            " (it needs libcudart and libnccl of CUDA, on the loader's path)");
  }
  void* entry = ::dlsym(module, cuda_module_entry);
  if (entry == nullptr) {
    throw CommunicatorError(path + " is not a CUDA module of this version of ddprun: it has no " +
                            cuda_module_entry);
  }
  return reinterpret_cast<MakeNcclCommunicator*>(entry);
}

MakeNcclCommunicator* entry() {
  static std::mutex mutex;
  static MakeNcclCommunicator* opened = nullptr;  // Stays open until the process ends.
  const std::lock_guard lock(mutex);
  if (opened == nullptr) opened = open_entry();
  return opened;
}

}  // namespace

void open_cuda_module() { entry(); }

std::unique_ptr<Communicator> make_nccl_communicator(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  char error[2048] = "";
  Communicator* made = entry()(&env, &options, error, sizeof(error));
  if (made == nullptr) throw CommunicatorError(error);
  return std::unique_ptr<Communicator>(made);
}

}  // namespace ddprun::worker
