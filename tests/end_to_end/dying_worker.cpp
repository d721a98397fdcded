// A worker that dies in the way its first argument says.
//
//   segfault | throw            with the error handlers of worker/error_file.h
//   bare_throw | bare_abort     without them, as a program that does not link worker/
//   eat_memory                  until somebody ends it
//   heavy MIB                   with so much memory, which the kernel takes time to free; says
//                               "heavy" and waits for its end
//   "heavy"
//                               and waits for its end
//   after POSITION ...          attempt N says that it got to the N-th position ("-": says nothing)
//                               and fails with 9; one that has none succeeds
//   in_order FIFO RANK          rank RANK ends first, with 10 + its rank; the other one waits for
//                               the end of the FIFO that the first holds open, and then does the
//                               same
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "worker/error_file.h"
#include "worker/progress_note.h"
#include "worker/worker_env.h"

namespace dying {

// Their names are what the tests look for; extern, and never inlined.
[[gnu::noinline]] void write_through_dangling_pointer(volatile int* pointer) { *pointer = 1; }
[[gnu::noinline]] void read_batch() { throw std::out_of_range("batch 12 of 10"); }

[[noreturn]] void eat_memory() {
  constexpr std::size_t piece_bytes = 4 << 20;
  for (;;) {
    void* piece = std::malloc(piece_bytes);
    if (piece != nullptr) std::memset(piece, 1, piece_bytes);
  }
}

// Not in huge pages, which are free at once.
[[noreturn]] void be_heavy(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ::madvise(memory, bytes, MADV_NOHUGEPAGE) != 0) ::_exit(98);
  std::memset(memory, 1, bytes);
  ddprun::worker::install_error_handlers(ddprun::worker::read_worker_env());
  std::puts("heavy");
  std::fflush(stdout);
  for (;;) ::pause();
}

[[noreturn]] void die_after(const char* const* positions, int count) {
  const int attempt = std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
  if (attempt >= count) ::_exit(0);
  const std::string position = positions[attempt];
  if (position != "-") {
    ddprun::worker::ProgressNote(ddprun::worker::read_worker_env()).reached(std::stol(position));
  }
  ::_exit(9);
}

[[noreturn]] void die_in_order(const char* fifo, int first_rank) {
  const int rank = ddprun::worker::read_worker_env().rank;
  const int fd = ::open(fifo, rank == first_rank ? O_WRONLY : O_RDONLY);  // Waits for the other.
  char byte = 0;
  if (rank != first_rank && ::read(fd, &byte, 1) != 0) ::_exit(99);
  ::_exit(10 + rank);
}

}  // namespace dying

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "segfault" || how == "throw") {
    ddprun::worker::install_error_handlers(ddprun::worker::read_worker_env());
  }
  if (how == "segfault") dying::write_through_dangling_pointer(reinterpret_cast<int*>(16));
  if (how == "throw" || how == "bare_throw") dying::read_batch();
  if (how == "bare_abort") assert(how == "this cannot be");
  if (how == "eat_memory") dying::eat_memory();
  if (how == "heavy" && argc == 3) dying::be_heavy(std::stoul(argv[2]) << 20);
  if (how == "after") dying::die_after(argv + 2, argc - 2);
  if (how == "in_order" && argc == 4) dying::die_in_order(argv[2], std::atoi(argv[3]));
  std::fprintf(stderr, "dying_worker does not know '%s'\n", how.c_str());
  return 98;
}
