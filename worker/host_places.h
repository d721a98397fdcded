// Which workers share a host, found out from what each says about itself: local ranks where no
// launcher gave any. Pure. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <vector>

namespace ddprun::worker {

// What a worker says about itself.
struct WorkerNote {
  std::string host;      // Equal for workers of one host, and only for them.
  std::string name;      // "pid 4127 on node3", for messages.
  std::string address;   // From which it reaches the store.
  int world_size = 1;    // As it was told.
  int local_rank = -1;   // As it was told; -1: it was not.
  std::string identity;  // Of the process: two notes are of the same only if these are equal.
};

std::string to_text(const WorkerNote& note);
// Nothing but defaults for text that is not a note.
WorkerNote parse_worker_note(const std::string& text);

struct HostPlace {
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;  // Hosts are numbered by their lowest rank.
  int group_world_size = 1;
};

// The place of `rank`, whose note is element `rank`. Local ranks follow the ranks, but a worker
// that was told its own keeps it: several may say 0 where each sees only one device.
HostPlace place_of(int rank, const std::vector<WorkerNote>& notes);

}  // namespace ddprun::worker
