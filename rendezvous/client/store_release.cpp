// Ends a wait without leaving its answer on the connection: replies carry no tag, so a late one
// would be taken for that of the next request.
#include "rendezvous/client/store_release.h"

#include <algorithm>

#include "rendezvous/client/store_requests.h"

namespace ddprun::rendezvous {
namespace {

using Keys = std::span<const std::string>;

constexpr std::size_t missing_keys_named_max = 16;

// True if the keys came while the wait was being cancelled: the answers are then 0 and 1.
bool cancel(StoreConnection& connection, const std::string& call) {
  const auto until = StoreConnection::Clock::now() + cancel_timeout;
  connection.send(request(StoreOp::CancelWait), until, call);
  const auto first = connection.receive_number<std::uint8_t>(until, call);
  if (first == wait_canceled) return false;
  const auto second = connection.receive_number<std::uint8_t>(until, call);
  if (first == wait_stopped && second == wait_canceled) return true;
  connection.fail(call, "got the answers " + std::to_string(first) + " and " +
                            std::to_string(second) + " to the cancellation of a wait");
}

// One CHECK per key, sent together.
std::string missing(StoreConnection& connection, Keys keys, const std::string& call) {
  if (keys.empty()) return "others";
  const auto asked = keys.first(std::min(keys.size(), missing_keys_named_max));
  const auto until = StoreConnection::Clock::now() + cancel_timeout;
  std::string bytes;
  for (const std::string& key : asked) bytes += request(StoreOp::Check, Keys(&key, 1));
  connection.send(bytes, until, call);
  std::string text;
  for (const std::string& key : asked) {
    if (connection.receive_number<std::uint8_t>(until, call) == check_ready) continue;
    text.append(text.empty() ? "'" : ", '").append(key).append("'");
  }
  if (asked.size() < keys.size()) {
    text += " (the first " + std::to_string(asked.size()) + " of " + std::to_string(keys.size()) +
            " keys were looked at)";
  }
  return text.empty() ? "none any more" : text;
}

}  // namespace

bool receive_release(StoreConnection& connection, Keys keys, const std::string& call,
                     std::chrono::milliseconds limit, StoreConnection::Deadline until) {
  if (connection.wait_readable(until, call)) {
    const auto answer = connection.receive_number<std::uint8_t>(until + cancel_timeout, call);
    if (answer == wait_stopped) return true;
    connection.fail(call, "got the answer " + std::to_string(answer) + " to a wait");
  }
  std::string text = "not known, because the connection broke";
  try {
    if (cancel(connection, call)) return true;
    text = missing(connection, keys, call);
  } catch (const StoreConnectionLost&) {
  }
  throw StoreTimeout(call + " on store " + connection.name() + ": timed out after " +
                     std::to_string(limit.count()) + " ms; missing: " + text);
}

}  // namespace ddprun::rendezvous
