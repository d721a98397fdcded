// What can go wrong here costs the launcher some time after a death, and nothing else: so nothing
// is reported.
#include "worker/life_lock.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "rendezvous/contract/life_page.h"
#include "worker/progress_page.h"
#include "worker/stack_page.h"

namespace ddprun::worker {

void hold_life_lock() {
  static bool holds = false;  // Error handlers may be installed twice, and one death is told once.
  if (holds || !ProgressPage::own().is_there() || ::gettid() != ::getpid()) return;
  auto& page = *reinterpret_cast<rendezvous::LifePageLayout*>(
      static_cast<char*>(memory_of_launcher()) + rendezvous::life_page_offset);
  for (pthread_mutex_t& lock : page.locks) {
    std::uint32_t* const word = rendezvous::life_word(lock);
    if (word == nullptr) return;
    // Not a lock that waits: its holder may live for as long as the job.
    const int got = ::pthread_mutex_trylock(&lock);
    if (got == EOWNERDEAD) ::pthread_mutex_consistent(&lock);
    if (got != 0 && got != EOWNERDEAD) continue;
    holds = true;
    // Whoever waits for the word saw it free.
    ::syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    return;
  }
}

}  // namespace ddprun::worker
