// What launcher/local_attempt.cpp and launcher/workers/worker_group.cpp make of their cores,
// without processes.
#include "tests/rendezvous/takeover/node_workers.h"

#include <algorithm>
#include <utility>

namespace ddprun::simulation {

NodeWorkers::NodeWorkers(int places, int least, launcher::SpareLimits limits)
    : places_(static_cast<std::size_t>(places)), least_(least), spares_(0, limits, places) {}

std::vector<launcher::LocalPlace> NodeWorkers::places() const {
  std::vector<launcher::LocalPlace> found;
  for (int place = 0; place < places_count(); ++place) {
    found.push_back({.kept = places_[static_cast<std::size_t>(place)].parked,
                     .spare = spares_.is_ready(place),
                     .no_hope = spares_.has_given_up(place)});
  }
  return found;
}

void NodeWorkers::start(int workers, TimePoint now) {
  filled_ = launcher::places_for(places(), workers);
  std::vector<int> missing;
  for (int place = 0; place < places_count(); ++place) {
    Place& its = places_[static_cast<std::size_t>(place)];
    const bool filled = std::find(filled_.begin(), filled_.end(), place) != filled_.end();
    if (!filled) missing.push_back(place);
    if (filled && !its.parked) spares_.take(place);  // Or it is started cold.
    its = {.lives = filled, .parked = false};        // Who is parked without a place is ended.
  }
  active_ = true;
  stopped_ = told_growth_ = false;
  keep_ = Keep::Nobody;
  spares_.attempt_started(now, std::move(missing));
}

void NodeWorkers::die(std::size_t which) {
  std::vector<Place*> living;
  for (Place& place : places_) {
    if (place.lives || place.parked) living.push_back(&place);
  }
  if (!living.empty()) *living[which % living.size()] = {};
}

bool NodeWorkers::stop(Keep keep) {
  if (!active_) {
    if (keep != Keep::Nobody || kept() == 0) return false;
    for (Place& place : places_) place = {.lives = place.parked, .parked = false};
    active_ = true;
    stopped_ = false;
  }
  if (stopped_ && (keep_ == Keep::Nobody || keep_ == keep)) return false;
  stopped_ = true;
  keep_ = keep;
  spares_.attempt_ended();
  return true;
}

void NodeWorkers::end(bool late) {
  active_ = false;
  for (Place& place : places_) {
    const bool parks = keep_ == Keep::Parking && place.lives && !late;
    if (place.lives) late = false;
    place = {.lives = false, .parked = parks};
  }
}

int NodeWorkers::kept() const {
  const bool spared = active_ && stopped_ && keep_ != Keep::Nobody;
  return static_cast<int>(std::count_if(places_.begin(), places_.end(), [&](const Place& place) {
    return place.parked || (spared && place.lives);
  }));
}

bool NodeWorkers::asks_to_grow() {
  const bool runs =
      active_ && !stopped_ && std::all_of(filled_.begin(), filled_.end(), [&](int place) {
        return places_[static_cast<std::size_t>(place)].lives;
      });
  if (!runs || told_growth_ || !launcher::can_grow(places(), filled_)) return false;
  told_growth_ = true;
  return true;
}

}  // namespace ddprun::simulation
