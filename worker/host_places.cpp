// Places follow from the notes alone, so that every worker finds the same ones by itself.
#include "worker/host_places.h"

#include <algorithm>
#include <sstream>

namespace ddprun::worker {
namespace {

// A note is a line a value, and the name of a host may hold anything.
std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string to_text(const WorkerNote& note) {
  std::string text;
  for (const std::string& part :
       {note.host, note.name, note.address, std::to_string(note.world_size),
        std::to_string(note.local_rank), note.identity}) {
    text += in_one_line(part) + "\n";
  }
  return text;
}

WorkerNote parse_worker_note(const std::string& text) {
  WorkerNote note;
  std::istringstream lines(text);
  std::string world_size, local_rank;
  std::getline(lines, note.host);
  std::getline(lines, note.name);
  std::getline(lines, note.address);
  std::getline(lines, world_size);
  std::getline(lines, local_rank);
  if (!std::getline(lines, note.identity)) return {};
  // A number that cannot be read would become 0, and that is a local rank.
  if (!(std::istringstream(world_size) >> note.world_size)) return {};
  if (!(std::istringstream(local_rank) >> note.local_rank)) return {};
  return note;
}

HostPlace place_of(int rank, const std::vector<WorkerNote>& notes) {
  const WorkerNote& own = notes[static_cast<std::size_t>(rank)];
  HostPlace place;
  place.local_world_size = 0;
  std::vector<std::string> hosts;
  for (int other = 0; other < static_cast<int>(notes.size()); ++other) {
    const std::string& host = notes[static_cast<std::size_t>(other)].host;
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    if (host != own.host) continue;
    if (other == rank) place.local_rank = place.local_world_size;
    ++place.local_world_size;
  }
  // What this process was told counts for more than the order of ranks.
  if (own.local_rank >= 0) place.local_rank = own.local_rank;
  const auto host = std::find(hosts.begin(), hosts.end(), own.host);
  place.group_rank = static_cast<int>(host - hosts.begin());
  place.group_world_size = static_cast<int>(hosts.size());
  return place;
}

}  // namespace ddprun::worker
