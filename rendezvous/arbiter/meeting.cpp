// Both ends of the same key: what seekers make of it, and how its owner keeps it true.
#include "rendezvous/arbiter/meeting.h"

namespace ddprun::rendezvous {

Meeting decide_meeting(const std::optional<Leader>& named, const std::string& node_id,
                       bool is_new) {
  if (!named || named->seat.node_id == node_id) return is_new ? Meeting::Lead : Meeting::LookAgain;
  return named->seat.port != 0 ? Meeting::Follow : Meeting::LookAgain;
}

// Of two in one term etcd has the word: the lease of one of them had ended, and the other began the
// job without knowing of it. Terms that elections gave differ.
Upkeep decide_upkeep(const std::optional<Leader>& named, const Leader& self) {
  if (!named) return Upkeep::Put;
  if (*named == self) return Upkeep::Nothing;
  const bool own = named->seat.node_id == self.seat.node_id;
  return own || named->term < self.term ? Upkeep::Replace : Upkeep::GiveWay;
}

}  // namespace ddprun::rendezvous
