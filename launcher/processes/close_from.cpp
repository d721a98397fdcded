// close_range(2) came with Linux 5.9; before, as on Ubuntu 20.04, the kernel's list is read. To
// close every number below the limit of open files would take minutes where that is a billion.
#include "launcher/processes/close_from.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ddprun::launcher {

// No sanitizer's bookkeeping, which would be the parent's.
#if defined(__clang__)
__attribute__((no_sanitize("address", "thread", "undefined")))
#else
__attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))
#endif
void close_from(int first) {
  if (syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  const auto list = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  if (list < 0) return;
  alignas(dirent64) char buffer[4096];  // As the kernel writes them, and glibc's struct has it.
  for (long size; (size = syscall(SYS_getdents64, list, buffer, sizeof buffer)) > 0;) {
    for (long at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer + at);
      at += entry->d_reclen;
      int fd = 0;  // Of "." and "..", too.
      for (const char* c = entry->d_name; *c >= '0' && *c <= '9'; ++c) fd = 10 * fd + (*c - '0');
      if (fd >= first && fd != list) syscall(SYS_close, fd);
    }
  }
  syscall(SYS_close, list);
}

}  // namespace ddprun::launcher
