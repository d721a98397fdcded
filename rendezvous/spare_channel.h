// How a spare (ddprun --spares) gets its rank: what launcher and programs have to agree on.
//
// A spare is started with a descriptor, named by DDPRUN_SPARE_FD, and with the word "spare" where
// its rank will be. When it is ready it writes a byte to the descriptor, and reads until the end:
// its environment, as /proc/PID/environ has it, with an empty entry behind the last.
//
//   RANK=3\0WORLD_SIZE=8\0 ... \0
//
// The end without the empty entry: the job is over. Not JSON, because a shell can read this one:
//   echo >&"$DDPRUN_SPARE_FD"
//   while IFS= read -r -d '' entry && [ "$entry" ]; do export "$entry"; done <&"$DDPRUN_SPARE_FD"
// A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {

// The variable that names the descriptor, and the descriptor.
inline constexpr const char* spare_variable = "DDPRUN_SPARE_FD";
inline constexpr int spare_fd = 4;

// The value of RANK and of all else that is not known yet. No number: a program that knows nothing
// of spares must not take itself for the only worker, and train alone.
inline constexpr const char* no_rank_yet = "spare";

// Semaphores that tell the launcher who died first (launcher/workers/death_order.h). A worker is
// given them between fork and exec; a spare has that behind it, and takes them by itself.
inline constexpr const char* death_marks_variable = "DDPRUN_DEATH_MARKS";

using Environment = std::vector<std::pair<std::string, std::string>>;

// What the launcher sends.
std::string rank_message(const Environment& environment);

// What has come so far: the environment once it is whole, in its order.
std::optional<Environment> read_rank_message(std::string_view message);

// One semaphore and what is added to it, as in sembuf.
struct DeathMark {
  unsigned short semaphore = 0;
  short value = 0;
};
struct DeathMarkSet {
  int id = -1;
  std::vector<DeathMark> marks;
};

// "ID NUMBER:VALUE NUMBER:VALUE ...".
std::string death_marks_text(const DeathMarkSet& set);
// Nothing when `text` is no such thing.
std::optional<DeathMarkSet> read_death_marks(const std::string& text);

}  // namespace ddprun::rendezvous
