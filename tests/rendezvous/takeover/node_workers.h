// The workers of one simulated agent whose node may go on with fewer of them: which places have
// one, which processes are parked, and which are being replaced. The decisions are the launcher's
// own (launcher/workers/local_places.h, spare_plan.h); this stands for the processes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "launcher/workers/group_state.h"
#include "launcher/workers/local_places.h"
#include "launcher/workers/spare_plan.h"

namespace ddprun::simulation {

class NodeWorkers {
 public:
  using TimePoint = launcher::SparePlan::TimePoint;
  using Keep = launcher::Keep;

  NodeWorkers() = default;  // All of a node's workers come and go together.
  // `least`: with so many of its `places` the node goes on.
  NodeWorkers(int places, int least, launcher::SpareLimits limits);

  bool may_be_fewer() const { return least_ < places_count(); }
  int places_count() const { return static_cast<int>(places_.size()); }

  // An attempt with so many.
  void start(int workers, TimePoint now);
  // Another one of those that run, or are parked, dies.
  void die(std::size_t which);
  // As WorkerGroup::stop(); false: there is nobody to stop, or to say anything new to.
  bool stop(Keep keep);
  // Nobody is left but those that have parked. `late`: one has not managed to, if any was to.
  void end(bool late);

  bool active() const { return active_; }
  Keep keep() const { return keep_; }
  int kept() const;                                                 // As WorkerGroup::kept().
  int workers() const { return static_cast<int>(filled_.size()); }  // Of the attempt begun last.
  bool whole() const { return !may_be_fewer() || workers() == places_count(); }
  // With so many the next attempt may begin here.
  int at_once() const { return launcher::workers_at_once(places(), least_); }
  // Whether to ask for another attempt; once in each.
  bool asks_to_grow();

  // Their processes are the owner's.
  launcher::SparePlan& spares() { return spares_; }

 private:
  struct Place {
    bool lives = false;   // Its process.
    bool parked = false;  // With the attempt over.
  };
  std::vector<launcher::LocalPlace> places() const;

  std::vector<Place> places_;
  int least_ = 0;
  launcher::SparePlan spares_{0};
  std::vector<int> filled_;  // By local rank.
  bool active_ = false;
  bool stopped_ = false;
  Keep keep_ = Keep::Nobody;
  bool told_growth_ = false;
};

}  // namespace ddprun::simulation
