// Spares alone do not count for a smaller attempt: one that is told a local rank below its place's
// number would take another worker's GPU. They count where they make the node whole.
#include "launcher/workers/local_places.h"

#include <algorithm>

namespace ddprun::launcher {

int workers_at_once(const std::vector<LocalPlace>& places, int workers_min) {
  const int all = static_cast<int>(places.size());
  const auto kept = static_cast<int>(std::count_if(
      places.begin(), places.end(), [](const LocalPlace& place) { return place.kept; }));
  const bool whole = std::all_of(places.begin(), places.end(), [](const LocalPlace& place) {
    return place.kept || place.spare || place.no_hope;
  });
  return whole || kept < std::max(workers_min, 1) ? all : kept;
}

std::vector<int> places_for(const std::vector<LocalPlace>& places, int workers) {
  std::vector<int> order;
  for (const bool kept : {true, false}) {
    for (int place = 0; place < static_cast<int>(places.size()); ++place) {
      if (places[static_cast<std::size_t>(place)].kept == kept) order.push_back(place);
    }
  }
  order.resize(std::min(order.size(), static_cast<std::size_t>(std::max(workers, 0))));
  std::sort(order.begin(), order.end());
  return order;
}

bool can_grow(const std::vector<LocalPlace>& places, const std::vector<int>& filled) {
  if (filled.size() >= places.size()) return false;
  for (int place = 0; place < static_cast<int>(places.size()); ++place) {
    const LocalPlace& is = places[static_cast<std::size_t>(place)];
    const bool has_worker = std::find(filled.begin(), filled.end(), place) != filled.end();
    if (!has_worker && !is.spare && !is.no_hope) return false;
  }
  return true;
}

}  // namespace ddprun::launcher
