// memfd and not a file in /dev/shm: that would have to be removed, and containers often have 64 MiB
// of it.
#include "launcher/workers/restart_memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ddprun::launcher {

rendezvous::UniqueFd make_restart_memory(std::size_t bytes) {
  rendezvous::UniqueFd memory(
      ::memfd_create("ddprun-restart-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    throw std::system_error(errno, std::generic_category(), "--restart-memory: cannot make it");
  }
  return memory;
}

}  // namespace ddprun::launcher
