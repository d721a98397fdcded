// Which worker of a node is to blame: not always the one that ended first. A rank that fails may
// take seconds to end (a `finally`, exit handlers, a profiler's file), and meanwhile its peers die
// of the connection that it has closed.
//
// A core: times in, a verdict out.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/report/error_file.h"

namespace ddprun::launcher {

// How long a failure that says no more than that a peer was lost is kept back for the peer's own
// error: Python's @record writes that when a `finally` inside of the function is over, and a worker
// that is stopped in there writes none.
constexpr std::chrono::milliseconds cause_wait{5'000};

// An error that a worker of this attempt has recorded.
struct RecordedError {
  int local_rank = 0;
  WallNs at = 0;
  bool exact = false;      // `at` is its writer's word. Else the file system's, up to a tick early.
  bool of_a_peer = false;  // It says that another rank failed or closed their connection.
  bool whole = true;       // False: what is there so far may be half of it.
  bool ended = false;      // Its writer has ended ...
  bool succeeded = false;  // ... and with 0: whatever it was, it got over it.
};

// The first worker that ended by itself.
struct FirstEnd {
  int local_rank = 0;
  WallNs at = 0;           // As it was seen, which is after its peers could notice it.
  bool of_a_peer = false;  // Its last words say so.
};

struct FirstError {
  int local_rank = 0;
  std::string reason;
};

FirstError first_error(const FirstEnd& end, const std::vector<RecordedError>& errors);

// Whether all that is known is that peers were lost, while one of those that may still say why has
// said nothing. `errors`: also of those that ended without recording one; `running`: how many
// workers do, another node counting as one.
bool cause_is_to_come(const std::vector<RecordedError>& errors, int running);

}  // namespace ddprun::launcher
