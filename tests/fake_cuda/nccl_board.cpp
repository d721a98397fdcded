// The board is a file without a name, reached through the descriptor of the process that made it:
// so it is gone when its users are, however they end.
#include "tests/fake_cuda/nccl_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace ddprun::fake_cuda {

ncclUniqueId create_board() {
  ncclUniqueId id{};
  const int file = ::memfd_create("fake_nccl", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, sizeof(Board)) != 0) return id;
  std::snprintf(id.internal, sizeof(id.internal), "/proc/%d/fd/%d", ::getpid(), file);
  return id;
}

void close_board(const ncclUniqueId& id) {
  int pid = 0, file = -1;
  if (std::sscanf(id.internal, "/proc/%d/fd/%d", &pid, &file) == 2 && pid == ::getpid()) {
    ::close(file);
  }
}

Board* map_board(const ncclUniqueId& id) {
  const int file = ::open(id.internal, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Board*>(memory);
}

void unmap_board(Board* board) { ::munmap(board, sizeof(Board)); }

}  // namespace ddprun::fake_cuda
