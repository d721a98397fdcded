// Who speaks, by the first byte of a connection to the job's one port. Agents and clients of the
// store share it, so that a job needs no second port opened, and the first byte is read before any
// of their code is reached. A store client's is the number of a command (wire/wire.h).
#pragma once

namespace ddprun::rendezvous {

// An agent: the record type of a handshake, with which every TLS connection begins (RFC 8446, 5.1).
inline constexpr char tls_first_byte = 0x16;
// An agent without a secret, or the refusal of one: its lines are JSON objects.
inline constexpr char plain_first_byte = '{';

constexpr bool begins_control(char first_byte) {
  return first_byte == tls_first_byte || first_byte == plain_first_byte;
}

}  // namespace ddprun::rendezvous
