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

// By so much the file system's clock may be behind: it ticks with the kernel's timer, of which the
// slowest in use has 100 Hz.
constexpr WallNs tick = 10 * ms;

bool counts(const RecordedError& error) { return !error.succeeded && (error.whole || error.ended); }

// Whether `one` is known to come before `other`.
bool precedes(const RecordedError& one, const RecordedError& other) {
  // Who says that a peer's end was its error knows of no other one: a peer that names an error of
  // its own at about that time is that peer, whichever of them was faster to say so.
  if (one.of_a_peer != other.of_a_peer && std::abs(one.at - other.at) <= notice) {
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
    // Whoever died without an error file is only outranked by what its death cannot explain.
    if (!own && error.at >= end.at - notice) continue;
    if (first == nullptr || precedes(error, *first)) first = &error;
  }
  if (first == nullptr || first->local_rank == end.local_rank) {
    return {end.local_rank, own ? "it ended first, and no error is older than its own"
                                : "it ended first, and no error is clearly older"};
  }
  if (!own) {
    return {first->local_rank, fmt::format("it recorded its error {} ms before local rank {} ended",
                                           (end.at - first->at) / ms, end.local_rank)};
  }
  if (first->at >= own->at) {
    return {first->local_rank,
            fmt::format("local rank {} says that a peer's end was its error, and this rank named "
                        "another one {} ms later",
                        end.local_rank, (first->at - own->at) / ms)};
  }
  return {first->local_rank,
          fmt::format("it recorded its error {:.3f} ms before local rank {} recorded one",
                      static_cast<double>(own->at - first->at) / ms, end.local_rank)};
}

}  // namespace ddprun::launcher
