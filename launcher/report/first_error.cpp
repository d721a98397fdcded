// Times of one machine's clock, compared with what is known of how exact each of them is.
#include "launcher/report/first_error.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddprun::launcher {
namespace {

// A process closes its files, and its peers record that, before we see it dead: usually by less
// than a millisecond, with a driver that has a GPU to release by more. Whoever died without an
// error file is only outranked by an error that is older than this.
constexpr WallMs notice_ms = 1'000;

bool counts(const RecordedError& error) { return !error.succeeded && (error.whole || error.ended); }

}  // namespace

FirstError first_error(const FirstEnd& end, const std::vector<RecordedError>& errors) {
  const auto own = std::find_if(errors.begin(), errors.end(), [&](const RecordedError& error) {
    return error.local_rank == end.local_rank;
  });
  // Its own record is exact. Equal times say nothing, and then the order of ends decides.
  const WallMs limit = own != errors.end() ? std::min(own->at, end.at) : end.at - notice_ms;
  const RecordedError* first = nullptr;
  for (const RecordedError& error : errors) {
    if (error.local_rank == end.local_rank || !counts(error) || error.at >= limit) continue;
    if (first == nullptr || error.at < first->at) first = &error;
  }
  if (first == nullptr) {
    return {end.local_rank, own != errors.end()
                                ? "it ended first, and no error is older than its own"
                                : "it ended first, and no error is clearly older"};
  }
  return {first->local_rank,
          fmt::format("it recorded its error {} ms before local rank {} {}",
                      (own != errors.end() ? own->at : end.at) - first->at, end.local_rank,
                      own != errors.end() ? "recorded one" : "ended")};
}

}  // namespace ddprun::launcher
