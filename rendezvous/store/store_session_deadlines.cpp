// What must not last for ever on a store connection: a command whose end does not come, and one
// that only the silence after it explains (StoreParser).
#include <algorithm>
#include <utility>

#include "rendezvous/store/store_sessions.h"

namespace ddprun::rendezvous {

StoreSessions::Clock::time_point StoreSessions::deadline() const {
  auto earliest = Clock::time_point::max();
  for (const std::deque<Due>* list : {&ambiguous_, &half_commands_}) {
    if (!list->empty()) earliest = std::min(earliest, list->front().deadline);
  }
  return earliest;
}

void StoreSessions::on_deadline(Clock::time_point now) {
  resolve_ambiguous(now);
  refuse_half_commands(now);
}

void StoreSessions::resolve_ambiguous(Clock::time_point now) {
  while (!ambiguous_.empty() && ambiguous_.front().deadline <= now) {
    const std::uint64_t token = ambiguous_.front().token;
    ambiguous_.pop_front();
    Connection* connection = find(token);
    if (connection == nullptr || !connection->parser.ambiguous()) continue;
    connection->parser.resolve_as_delete();
    reply_.clear();
    const auto id = static_cast<ConnectionId>(token);
    if (serve(id)) serve_all(id, {}, now);
  }
}

// What a command has sent so far is kept; its sender must not make that last for ever.
void StoreSessions::limit_half_command(ConnectionId id, Clock::time_point now) {
  Connection& connection = *connections_[id].connection;
  if (!connection.parser.mid_command()) {
    connection.command_began.reset();
  } else if (!connection.command_began) {
    connection.command_began = now;
    if (std::exchange(connection.limited, true)) return;
    half_commands_.push_back({token_of(id), now + options_.command_time_max});
  }
}

void StoreSessions::refuse_half_commands(Clock::time_point now) {
  while (!half_commands_.empty() && half_commands_.front().deadline <= now) {
    const std::uint64_t token = half_commands_.front().token;
    half_commands_.pop_front();
    Connection* connection = find(token);
    if (connection == nullptr) continue;
    connection->limited = false;
    if (!connection->command_began) continue;
    const auto id = static_cast<ConnectionId>(token);
    const auto due = *connection->command_began + options_.command_time_max;
    if (due <= now) {
      refuse(id, "the rest of its command did not come within command_time_max = " +
                     std::to_string(options_.command_time_max.count()) + " ms");
    } else {  // Another command than the one that was listed.
      connection->limited = true;
      half_commands_.push_back({token, due});
    }
  }
}

}  // namespace ddprun::rendezvous
