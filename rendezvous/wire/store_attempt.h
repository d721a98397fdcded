// How a client learns which attempt of a job a store serves, so that a process of an attempt that
// is over, which makes a new connection, is turned away before it can read or write.
//
// Before all else the client sends a COMPARE_SET of the key "ddprun/attempt/" + the name of its own
// attempt (empty: it does not know), that expects nothing and proposes "#" + a random number:
//
//   our server     answers with StoreAttempt::text() and keeps nothing; it closes the connection of
//                  a client that named another attempt
//   any other      creates the key, or answers with what the first client proposed
//
// Either way the answer is the same for as long as the store lives and is not emptied, which is
// what a client that reconnects has to know. The key has no "/" before it, so it is none of a
// user's.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::rendezvous {

inline constexpr std::string_view attempt_key_prefix = "ddprun/attempt/";

// With --store-auth a client proves the key of the job's workers before it is served. It asks for
// a challenge with a COMPARE_SET of the one key that expects and proposes nothing; our server
// answers with a number of this connection alone, or with nothing when it asks for no proof. The
// answer is a COMPARE_SET of the other key that proposes what is made of store_proof_statement().
inline constexpr std::string_view challenge_key = "ddprun/challenge";
inline constexpr std::string_view proof_key = "ddprun/proof";

inline std::string store_proof_statement(std::string_view challenge) {
  return std::string("ddprun store: client ").append(challenge);
}

// Whether a server's answer names another attempt than the client's own; where either is not known,
// it does not.
inline bool names_another_attempt(std::string_view answer, std::string_view attempt) {
  const std::string_view name = answer.substr(0, answer.find('#'));
  return !name.empty() && !attempt.empty() && name != attempt;
}

struct StoreAttempt {
  std::string name;   // Of attempt_name(): "0.3", "3"; empty: the server does not know.
  std::string nonce;  // Of this server and this attempt, and of no other.

  // The answer to a client that says it is of `attempt` (empty: it does not know).
  std::string text(std::string_view attempt) const {
    return std::string(name_for(attempt)).append("#").append(nonce);
  }
  // Whether that client may stay.
  bool fits(std::string_view attempt) const {
    return attempt.empty() || name.empty() || attempt == name_for(attempt);
  }

 private:
  // A program with a client from before there were terms names its attempt's number alone, and is
  // told no more: it compares the two itself.
  std::string_view name_for(std::string_view attempt) const {
    const std::string_view own = name;
    const bool no_term = !attempt.empty() && attempt.find('.') == attempt.npos;
    return no_term ? own.substr(own.find('.') + 1) : own;
  }
};

}  // namespace ddprun::rendezvous
