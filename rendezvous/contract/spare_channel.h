// How a process gets its rank when it runs already: what launcher and programs have to agree on.
//
// A spare (ddprun --spares) is started with a descriptor, named by DDPRUN_SPARE_FD, and with the
// word "spare" where its rank will be. When it is ready it writes the byte '\n' to the descriptor,
// and reads until the end: its environment, as /proc/PID/environ has it, with an empty entry behind
// the last.
//
//   RANK=3\0WORLD_SIZE=8\0 ... \0
//
// The end without the empty entry: the job is over. Not JSON, because a shell can read this one:
//   echo >&"$DDPRUN_SPARE_FD"
//   while IFS= read -r -d '' entry && [ "$entry" ]; do export "$entry"; done <&"$DDPRUN_SPARE_FD"
//
// Where another attempt may follow, every worker has such a descriptor, named by DDPRUN_RANK_FD;
// who was a spare keeps the one it has when its new environment names it so, and closes it
// otherwise. By it a worker survives the attempt ("parks"), and is given a rank in the next one:
//
//   worker                                 launcher
//   'k'  I can park                 -->    sends it no signal when an attempt ends and another one
//                                          may follow; stands until the descriptor is closed, and
//                                          may be said again
//                                   <--    DDPRUN_ATTEMPT_OVER=why\0\0   another attempt follows
//   '\n' I am parked: no collective,-->    counts it as reaped; kills it only when the job is over
//        no connection to the store
//        of that attempt
//                                   <--    RANK=1\0 ... \0               the next attempt
//
// Who has lost a peer waits for DDPRUN_WORD_LIMIT_MS to be told: by then the launcher would know of
// any process or node that is gone. It may also park before it is told; DDPRUN_ATTEMPT_OVER may
// then come first, and is skipped by who waits for a rank. Who does not park within the shutdown
// time-out, or never said 'k', is asked to end by a signal, and killed. The end of the stream: the
// job is over. A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {

// The variables that name the descriptor, of a spare and of a worker, and the descriptor.
inline constexpr const char* spare_variable = "DDPRUN_SPARE_FD";
inline constexpr const char* rank_variable = "DDPRUN_RANK_FD";
inline constexpr int spare_fd = 4;

// In milliseconds, beside rank_variable.
inline constexpr const char* peer_word_limit_variable = "DDPRUN_WORD_LIMIT_MS";

// What a process says.
inline constexpr char gives_rank_back = '\n';  // It has none, and waits for one.
inline constexpr char can_park = 'k';

// The only entry of the message that ends an attempt.
inline constexpr const char* attempt_over_variable = "DDPRUN_ATTEMPT_OVER";

// The value of RANK and of all else that is not known yet. No number: a program that knows nothing
// of spares must not take itself for the only worker, and train alone.
inline constexpr const char* no_rank_yet = "spare";

// Semaphores that tell the launcher who died first (launcher/processes/death_order.h). A worker is
// given them between fork and exec; a spare has that behind it, and takes them by itself.
inline constexpr const char* death_marks_variable = "DDPRUN_DEATH_MARKS";

using Environment = std::vector<std::pair<std::string, std::string>>;

// What the launcher sends.
std::string rank_message(const Environment& environment);

std::string attempt_over_message(const std::string& why);

// What has come so far: the environment once it is whole, in its order.
std::optional<Environment> read_rank_message(std::string_view message);

// The first whole message of what has come so far, which is taken from the front of `received`;
// what follows it stays.
std::optional<Environment> take_message(std::string& received);

// Why the attempt is over, when this is that message; nothing: it is a rank's environment.
std::optional<std::string> attempt_over(const Environment& message);

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
