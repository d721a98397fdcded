// Where a worker on this library writes its stack when it is asked for it (ddprun stacks): in its
// own part of the memory of rendezvous/contract/progress_page.h, well behind what it says of its
// progress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rendezvous/contract/progress_page.h"

namespace ddprun::rendezvous {

inline constexpr std::size_t stack_page_offset = 32'768;  // From the worker's page.

struct StackPageLayout {
  std::int32_t pid;       // Who can be asked; 0: nobody.
  std::int32_t signal;    // How: this one makes its main thread write.
  std::uint32_t answers;  // Grows when a stack is there whole.
  std::uint32_t bytes;    // Of it.
  char text[16'368];      // As backtrace_symbols_fd() writes it.
};
static_assert(stack_page_offset + sizeof(StackPageLayout) <= progress_page_stride);

}  // namespace ddprun::rendezvous
