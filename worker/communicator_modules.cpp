// Opening the modules and calling their entry points.
#include "worker/communicator_modules.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "rendezvous/strangers_module.h"

namespace ddprun::worker {
namespace {

struct ModuleNames {
  std::string what;      // "CUDA", for messages.
  std::string file;      // "libddprun_cuda.so"
  std::string variable;  // Names another file: "DDPRUN_CUDA_MODULE".
  std::string entry;     // The function that makes its communicator.
  std::string needs;     // What it is built with.
  std::string get;       // How one gets it, where it was not there when ddprun was built.
};

// A path to open, or a bare name for the loader to look up.
std::string module_path(const ModuleNames& names) {
  const char* named = std::getenv(names.variable.c_str());
  if (named != nullptr && *named != '\0') return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path() / names.file;
  if (rendezvous::is_strangers_module(beside)) {
    throw CommunicatorError("the " + names.what + " module " + beside.string() +
                            " is another user's, in a folder that anybody may write to: move the "
                            "programs to a folder of your own, or name the module in " +
                            names.variable);
  }
  return std::filesystem::exists(beside, error) ? beside.string() : names.file;
}

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
    throw CommunicatorError(absent ? "the " + names.what + " module " + path + " does not exist: " +
                                         names.get + ", or name the module in " + names.variable
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

// Opened at its first use, and then open until the process ends. One that could not be opened is
// tried again. Any thread.
class Module {
 public:
  explicit Module(ModuleNames names) : names_(std::move(names)) {}

  MakeModuleCommunicator* entry() {
    const std::lock_guard lock(mutex_);
    if (entry_ == nullptr) entry_ = open_module(names_);
    return entry_;
  }

  std::unique_ptr<Communicator> make(const WorkerEnv& env, const CommunicatorOptions& options) {
    char error[2048] = "";
    Communicator* made = entry()(&env, &options, error, sizeof(error));
    if (made == nullptr) throw CommunicatorError(error);
    return std::unique_ptr<Communicator>(made);
  }

 private:
  const ModuleNames names_;
  std::mutex mutex_;
  MakeModuleCommunicator* entry_ = nullptr;
};

Module& cuda_module() {
  static Module module({.what = "CUDA",
                        .file = "libddprun_cuda.so",
                        .variable = "DDPRUN_CUDA_MODULE",
                        .entry = cuda_module_entry,
                        .needs = "libcudart of a CUDA toolkit and libnccl",
                        .get = "build ddprun again where a CUDA toolkit and NCCL can be found"});
  return module;
}

Module& mpi_module() {
  static Module module({.what = "MPI",
                        .file = "libddprun_mpi.so",
                        .variable = "DDPRUN_MPI_MODULE",
                        .entry = mpi_module_entry,
                        .needs = "Open MPI (libopenmpi-dev)",
                        .get = "run scripts/setup --mpi, which installs Open MPI, and then "
                               "scripts/build"});
  return module;
}

// Who asked for it must not believe that it is done.
void refuse_to_encrypt(const WorkerEnv& env, const std::string& carrier,
                       const std::string& instead) {
  if (!env.encrypt_gradients || env.world_size == 1) return;
  throw CommunicatorError("rank " + std::to_string(env.rank) +
                          " is to encrypt the gradients (--encrypt-gradients, "
                          "DDPRUN_ENCRYPT_GRADIENTS=1), and " +
                          carrier + " carries them, whose bytes ddprun does not see: " + instead +
                          ", or leave the option out");
}

}  // namespace

void open_cuda_module() { cuda_module().entry(); }

std::unique_ptr<Communicator> make_nccl_communicator(const WorkerEnv& env,
                                                     const CommunicatorOptions& options) {
  refuse_to_encrypt(env, "NCCL", "keep it on a network of its own (NCCL_SOCKET_IFNAME)");
  return cuda_module().make(env, options);
}

std::unique_ptr<Communicator> make_mpi_communicator(const WorkerEnv& env,
                                                    const CommunicatorOptions& options) {
  refuse_to_encrypt(env, "MPI", "use one that encrypts by itself");
  return mpi_module().make(env, options);
}

}  // namespace ddprun::worker
