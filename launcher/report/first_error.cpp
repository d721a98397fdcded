// Times of one machine's clock, compared with what is known of how exact each of them is.
#include "launcher/report/first_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace ddprun::launcher {
namespace {

constexpr WallNs ms = 1'000'000;

// A process closes its files, and its peers record that, before we see it dead, or before it has
// unwound to where it records its own error: usually by less than a millisecond, with a driver that
// has a GPU to release by more.
constexpr WallNs notice = 1'000 * ms;

constexpr WallNs said_of_a_peer = cause_wait.count() * ms + notice;

// By so much the file system's clock may be behind: it ticks with the kernel's timer, of which the
// slowest in use has 100 Hz.
constexpr WallNs tick = 10 * ms;

bool counts(const RecordedError& error) { return !error.succeeded && (error.whole || error.ended); }

// Who says that a peer's end was its error knows of no other one: a peer that names an error of its
// own at about that time is that peer, whichever of them was faster to say so.
bool one_explains_the_other(WallNs at, bool of_a_peer, WallNs other_at, bool other_of_a_peer) {
  return of_a_peer != other_of_a_peer && std::abs(at - other_at) <= said_of_a_peer;
}

// Whether `one` is known to come before `other`.
bool precedes(const RecordedError& one, const RecordedError& other) {
  if (one_explains_the_other(one.at, one.of_a_peer, other.at, other.of_a_peer)) {
    return other.of_a_peer;
  }
  return one.at + (other.exact && !one.exact ? tick : 0) < other.at;
}

}  // namespace

FirstError first_error(const FirstEnd& end, const std::vector<RecordedError>& errors) {
  std::optional<RecordedError> own;
  for (const RecordedError& error : errors) {
    if (error.local_rank != end.local_rank) continue;
    own = error;
    own->at = std::min(error.at, end.at);  // A child that it left may have written it again.
  }
  // Where nobody's error is known to be the first, the order of ends decides.
  const RecordedError* first = own ? &*own : nullptr;
  for (const RecordedError& error : errors) {
    if (error.local_rank == end.local_rank || !counts(error)) continue;
    if (!own && one_explains_the_other(error.at, error.of_a_peer, end.at, end.of_a_peer)) {
      if (error.of_a_peer) continue;
    } else if (!own && error.at >= end.at - notice) {
      // Whoever died without an error file is only outranked by what its death cannot explain.
      continue;
    }
    if (first == nullptr || precedes(error, *first)) first = &error;
  }
  if (first == nullptr || first->local_rank == end.local_rank) {
    return {end.local_rank, own ? "it ended first, and no error is older than its own"
                                : "it ended first, and no error is clearly older"};
  }
  const WallNs own_at = own ? own->at : end.at;
  if (first->at >= own_at) {
    return {first->local_rank,
            fmt::format("local rank {} says that a peer's end was its error, and this rank named "
                        "another one {} ms later",
                        end.local_rank, (first->at - own_at) / ms)};
  }
  if (!own) {
    return {first->local_rank, fmt::format("it recorded its error {} ms before local rank {} ended",
                                           (end.at - first->at) / ms, end.local_rank)};
  }
  return {first->local_rank,
          fmt::format("it recorded its error {:.3f} ms before local rank {} recorded one",
                      static_cast<double>(own->at - first->at) / ms, end.local_rank)};
}

bool cause_is_to_come(const std::vector<RecordedError>& errors, int running) {
  int silent = running;
  for (const RecordedError& error : errors) {
    if (!counts(error)) continue;
    if (!error.of_a_peer) return false;
    if (!error.ended) --silent;
  }
  return silent > 0;
}

}  // namespace ddprun::launcher
