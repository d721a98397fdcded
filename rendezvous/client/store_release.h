// The client's side of a WAIT or BARRIER: its answer, or the end of its patience.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "rendezvous/client/store_connection.h"

namespace ddprun::rendezvous {

// After a wait that timed out the store must acknowledge the cancellation; a store that does not
// is gone.
inline constexpr std::chrono::milliseconds cancel_timeout{5'000};

// To be called when the request has been sent; returns true, when it is answered. At `until` the
// wait is cancelled, and StoreTimeout says that it lasted `limit` and which of `keys` are missing.
// Throws StoreConnectionLost too.
bool receive_release(StoreConnection& connection, std::span<const std::string> keys,
                     const std::string& call, std::chrono::milliseconds limit,
                     StoreConnection::Deadline until);

}  // namespace ddprun::rendezvous
