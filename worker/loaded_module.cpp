// See loaded_module.h.
#include "worker/loaded_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace ddprun::worker {
namespace {

// A path to open, or a bare name for the loader to look up.
std::string module_path(const ModuleNames& names) {
  const char* named = std::getenv(names.variable.c_str());
  if (named != nullptr && *named != '\0') return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path() / names.file;
  return std::filesystem::exists(beside, error) ? beside.string() : names.file;
}

}  // namespace

MakeModuleCommunicator* open_module(const ModuleNames& names) {
  const std::string path = module_path(names);
  // Global, so that what the module brings finds its own parts: LibTorch's CUDA libraries, and the
  // components that MPI opens.
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    const std::string reason = ::dlerror();
    std::error_code error;
    const bool absent = path == names.file ? reason.find(names.file + ": cannot open") == 0
                                           : !std::filesystem::exists(path, error);
    throw CommunicatorError(absent ? "the " + names.what + " module " + path +
                                         " does not exist: build ddprun where " + names.needs +
                                         " can be found, or name the module in " + names.variable
                                   : "the " + names.what + " module cannot be loaded: " + reason +
                                         " (it needs " + names.needs + " on the loader's path)");
  }
  void* entry = ::dlsym(module, names.entry.c_str());
  if (entry == nullptr) {
    throw CommunicatorError(path + " is not a " + names.what +
                            " module of this version of ddprun: it has no " + names.entry);
  }
  return reinterpret_cast<MakeModuleCommunicator*>(entry);
}

std::unique_ptr<Communicator> make_module_communicator(MakeModuleCommunicator* entry,
                                                       const WorkerEnv& env,
                                                       const CommunicatorOptions& options) {
  char error[2048] = "";
  Communicator* made = entry(&env, &options, error, sizeof(error));
  if (made == nullptr) throw CommunicatorError(error);
  return std::unique_ptr<Communicator>(made);
}

}  // namespace ddprun::worker
