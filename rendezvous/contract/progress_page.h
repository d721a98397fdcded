// Where a worker says how far it is, for people who watch (ddprun status, top): memory that the
// launcher and its worker share. Saying it is a store, and no system call; the launcher reads it
// when somebody asks. What stands there decides nothing (rendezvous/contract/progress_key.h is what
// restarts look at) but who stands still (launcher/stall/stall_detector.h).
//
// Any program may write it, in any language: examples/progress_page.py does it in ten lines. Fields
// are added at the end and never moved; numbers are in the machine's byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun::rendezvous {

// The variable says "FD:OFFSET": which descriptor to map, and from where.
inline constexpr const char* progress_page_variable = "DDPRUN_PROGRESS_PAGE";
inline constexpr int progress_page_fd = 6;
// From one worker's page to the next: a page on every machine, or several.
inline constexpr std::size_t progress_page_stride = 65'536;

inline constexpr char progress_page_magic[8] = {'d', 'd', 'p', 'r', 'u', 'n', 'p', 'g'};
inline constexpr std::uint32_t progress_page_version = 1;

struct ProgressPageLayout {
  char magic[8];             //   0  progress_page_magic; this and the next two by the launcher
  std::uint32_t version;     //   8  progress_page_version
  std::uint32_t bytes;       //  12  of this struct
  std::uint64_t writes;      //  16  odd while a worker writes; who writes seldom may leave it 0
  std::int64_t said_at_ns;   //  24  CLOCK_MONOTONIC when something was said; 0: nothing yet
  std::int64_t step;         //  32  steps of the job that are done; -1: not said, as the next two
  std::int64_t total_steps;  //  40
  std::int64_t epoch;        //  48  from 1
  std::int64_t images;       //  56  samples that this process has trained on
  double images_per_s;       //  64  of this rank, over its last steps
  double loss;               //  72  NaN: not said
  double step_s;             //  80  of a step, over the last ones; of it ...
  double data_s;             //  88  ... waiting for data ...
  double wait_s;             //  96  ... and for other ranks
  double data_total_s;       // 104  since this process began
  double wait_total_s;       // 112
  char phase[32];            // 120  "forward"; ends with a NUL
  // 152  CLOCK_MONOTONIC when the wait for other ranks began that it is in; 0: it is in none. Apart
  //      from `writes`: the thread that waits may be another one than the one that tells steps.
  std::int64_t waiting_since_ns;
};
static_assert(offsetof(ProgressPageLayout, loss) == 72);
static_assert(offsetof(ProgressPageLayout, phase) == 120);
static_assert(offsetof(ProgressPageLayout, waiting_since_ns) == 152);

// A phase by whose name a program says that it waits for others, where it writes no time of that.
constexpr bool names_a_wait(std::string_view phase) {
  return phase == "all-reduce" || phase.substr(0, 4) == "wait";
}

}  // namespace ddprun::rendezvous
