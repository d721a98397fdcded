// The launcher's side of what workers say of themselves (rendezvous/contract/progress_page.h): a
// page for each of its workers, in memory without a name that is gone with the last process that
// holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/status/job_snapshot.h"
#include "rendezvous/contract/life_page.h"
#include "rendezvous/contract/progress_page.h"
#include "rendezvous/contract/stack_page.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// What stands in a page; nothing when its worker has said nothing. Another process may write to it
// meanwhile, and it may be anybody's program. `now_ns`: CLOCK_MONOTONIC.
std::optional<RankProgress> read_progress(const rendezvous::ProgressPageLayout& page,
                                          std::int64_t now_ns);

class ProgressPages {
 public:
  ProgressPages() = default;
  // For this many workers. Where the memory cannot be had there are none, and nobody is worse off.
  explicit ProgressPages(int workers);
  ~ProgressPages();
  ProgressPages(const ProgressPages&) = delete;

  int fd() const { return memory_.get(); }  // -1: none.
  // By which workers' deaths are told (rendezvous/contract/life_page.h); none where there are no
  // pages.
  std::vector<std::uint32_t*> life_words() const;
  void clear();  // Before an attempt.
  std::optional<RankProgress> read(int local_rank) const;

  // Asks the worker with this pid for its stack (rendezvous/contract/stack_page.h). Nothing: it
  // cannot be asked; else what to give stack().
  std::optional<std::uint32_t> ask_stack(int local_rank, int pid) const;
  // The answer, as backtrace_symbols() has it; nothing: it has not come.
  std::optional<std::string> stack(int local_rank, std::uint32_t asked) const;

 private:
  void make_life_locks();
  rendezvous::LifePageLayout* life_page(int local_rank) const;
  rendezvous::StackPageLayout* stack_page(int local_rank) const;
  rendezvous::ProgressPageLayout* page(int local_rank) const;

  int workers_ = 0;
  rendezvous::UniqueFd memory_;
  char* pages_ = nullptr;
};

}  // namespace ddprun::launcher
