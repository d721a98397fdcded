// How a launcher hears of a worker's death before the kernel has taken the worker's memory apart:
// a lock that the worker's main thread holds for as long as it lives, in the worker's own part of
// the memory of rendezvous/contract/progress_page.h.
//
// A process that is killed first frees its memory, some 0.1 ms for each MiB that it has touched,
// then closes its files, which its peers notice, and at last tells its parent (pidfd, waitpid). The
// kernel marks the locks of a dying thread before all of that.
//
// Source: Linux, do_exit() calls exit_mm(), whose exit_mm_release() runs futex_exit_release();
// Documentation/locking/robust-futexes.rst.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "rendezvous/contract/progress_page.h"

namespace ddprun::rendezvous {

// From the worker's page, and in the part of it that is touched anyway.
inline constexpr std::size_t life_page_offset = 2'048;

// The launcher makes them, robust and shared between processes; a worker locks the first that is
// free and never unlocks it: a word that is free again tells of a death. So a worker that was given
// another place keeps its lock here, and the next one at this place takes another.
// Programs hold pthread_mutex_t in static memory, so no glibc can give it another shape.
struct LifePageLayout {
  pthread_mutex_t locks[3];
};
static_assert(life_page_offset >= sizeof(ProgressPageLayout));
static_assert(life_page_offset + sizeof(LifePageLayout) <= 4'096);

// The word of the lock that the kernel marks: the holder's thread id, and FUTEX_OWNER_DIED once
// that is gone. Null where the C library is not glibc, which alone says where it is.
inline std::uint32_t* life_word([[maybe_unused]] pthread_mutex_t& lock) {
#ifdef __GLIBC__
  return reinterpret_cast<std::uint32_t*>(&lock.__data.__lock);
#else
  return nullptr;
#endif
}

}  // namespace ddprun::rendezvous
