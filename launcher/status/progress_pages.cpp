// Each worker's memory begins at a multiple of progress_page_stride; of that only the first page is
// ever touched, so the rest costs nothing.
#include "launcher/status/progress_pages.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace ddprun::launcher {
namespace {

using Layout = rendezvous::ProgressPageLayout;

constexpr int reading_tries = 16;  // A writer is done after a fraction of a microsecond.

Layout copy_of(const Layout& page) {
  Layout copy{};
  const std::atomic_ref writes(const_cast<Layout&>(page).writes);
  for (int i = 0; i < reading_tries; ++i) {
    const std::uint64_t before = writes.load(std::memory_order_acquire);
    std::memcpy(&copy, &page, sizeof copy);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && writes.load(std::memory_order_relaxed) == before) break;
  }
  return copy;
}

double at_least_0(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

// For people's terminals: what a program wrote there may be anything.
std::string plain_words(const char* text, std::size_t bytes_max) {
  std::string words(text, ::strnlen(text, bytes_max));
  std::replace_if(
      words.begin(), words.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return words;
}

// What a page says is a program's word; a signal that it does not handle would end it.
bool handles_signal(int pid, int signal) {
  if (signal < SIGRTMIN || signal > SIGRTMAX) return false;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigCgt:", 0) != 0) continue;
    return (std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

}  // namespace

std::optional<RankProgress> read_progress(const Layout& page, std::int64_t now_ns) {
  const Layout said = copy_of(page);
  if (said.said_at_ns == 0) return std::nullopt;
  RankProgress progress;
  progress.step = std::max<std::int64_t>(said.step, -1);
  progress.total_steps = std::max<std::int64_t>(said.total_steps, -1);
  progress.epoch = std::max<std::int64_t>(said.epoch, -1);
  progress.phase = plain_words(said.phase, sizeof said.phase);
  progress.images = std::max<std::int64_t>(said.images, 0);
  progress.images_per_s = at_least_0(said.images_per_s);
  if (std::isfinite(said.loss)) progress.loss = said.loss;
  progress.step_s = at_least_0(said.step_s);
  progress.data_s = at_least_0(said.data_s);
  progress.wait_s = at_least_0(said.wait_s);
  progress.data_total_s = at_least_0(said.data_total_s);
  progress.wait_total_s = at_least_0(said.wait_total_s);
  progress.said_at_ns = said.said_at_ns;
  progress.age_s = at_least_0(static_cast<double>(now_ns - said.said_at_ns) / 1e9);
  progress.waiting_since_ns = said.waiting_since_ns;
  if (said.waiting_since_ns == 0 && rendezvous::names_a_wait(progress.phase)) {
    progress.waiting_since_ns = said.said_at_ns;
  }
  if (progress.waiting_since_ns != 0) {
    progress.waiting_s = at_least_0(static_cast<double>(now_ns - progress.waiting_since_ns) / 1e9);
  }
  return progress;
}

ProgressPages::ProgressPages(int workers) : workers_(workers) {
  const std::size_t bytes = rendezvous::progress_page_stride * static_cast<std::size_t>(workers);
  rendezvous::UniqueFd memory(::memfd_create("ddprun-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Were it cut, the launcher would die of reading it.
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return;
  }
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (pages == MAP_FAILED) return;
  pages_ = static_cast<char*>(pages);
  memory_ = std::move(memory);
  clear();
  make_life_locks();
}

ProgressPages::~ProgressPages() {
  if (pages_ == nullptr) return;
  ::munmap(pages_, rendezvous::progress_page_stride * static_cast<std::size_t>(workers_));
}

void ProgressPages::clear() {
  if (pages_ == nullptr) return;
  Layout empty{};
  std::memcpy(empty.magic, rendezvous::progress_page_magic, sizeof empty.magic);
  empty.version = rendezvous::progress_page_version;
  empty.bytes = sizeof empty;
  empty.step = empty.total_steps = empty.epoch = -1;
  empty.loss = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < workers_; ++i) std::memcpy(page(i), &empty, sizeof empty);
}

// Once: a worker that is kept holds its lock from one attempt to the next.
void ProgressPages::make_life_locks() {
  pthread_mutexattr_t kind;
  ::pthread_mutexattr_init(&kind);
  ::pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  for (int i = 0; i < workers_; ++i) {
    for (pthread_mutex_t& lock : life_page(i)->locks) ::pthread_mutex_init(&lock, &kind);
  }
  ::pthread_mutexattr_destroy(&kind);
}

std::vector<std::uint32_t*> ProgressPages::life_words() const {
  std::vector<std::uint32_t*> words;
  if (pages_ == nullptr) return words;
  // The first ones of all places before the others, which are seldom held: a watch has its limit.
  for (std::size_t n = 0; n < std::size(rendezvous::LifePageLayout{}.locks); ++n) {
    for (int i = 0; i < workers_; ++i) {
      std::uint32_t* const word = rendezvous::life_word(life_page(i)->locks[n]);
      if (word != nullptr) words.push_back(word);
    }
  }
  return words;
}

std::optional<RankProgress> ProgressPages::read(int local_rank) const {
  if (pages_ == nullptr || local_rank < 0 || local_rank >= workers_) return std::nullopt;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return read_progress(*page(local_rank),
                       std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::optional<std::uint32_t> ProgressPages::ask_stack(int local_rank, int pid) const {
  if (pages_ == nullptr || local_rank < 0 || local_rank >= workers_) return std::nullopt;
  const rendezvous::StackPageLayout& page = *stack_page(local_rank);
  const int signal = page.signal;
  if (page.pid != pid || !handles_signal(pid, signal)) return std::nullopt;
  const std::uint32_t before = std::atomic_ref(stack_page(local_rank)->answers).load();
  if (::syscall(SYS_tgkill, pid, pid, signal) != 0) return std::nullopt;
  return before;
}

std::optional<std::string> ProgressPages::stack(int local_rank, std::uint32_t asked) const {
  rendezvous::StackPageLayout& page = *stack_page(local_rank);
  if (std::atomic_ref(page.answers).load(std::memory_order_acquire) == asked) return std::nullopt;
  return std::string(page.text, std::min<std::size_t>(page.bytes, sizeof page.text));
}

rendezvous::LifePageLayout* ProgressPages::life_page(int local_rank) const {
  return reinterpret_cast<rendezvous::LifePageLayout*>(reinterpret_cast<char*>(page(local_rank)) +
                                                       rendezvous::life_page_offset);
}

rendezvous::StackPageLayout* ProgressPages::stack_page(int local_rank) const {
  return reinterpret_cast<rendezvous::StackPageLayout*>(reinterpret_cast<char*>(page(local_rank)) +
                                                        rendezvous::stack_page_offset);
}

Layout* ProgressPages::page(int local_rank) const {
  return reinterpret_cast<Layout*>(pages_ + rendezvous::progress_page_stride *
                                                static_cast<std::size_t>(local_rank));
}

}  // namespace ddprun::launcher
