// Keys out of the job's secret, one for each use, so that no use can be taken for another.
//
// A core: bytes in, bytes out. HKDF with SHA-256 (RFC 5869): who learns one of these keys knows
// neither the secret nor any other key. The name of the job goes in, so that a wrong --rdzv-id
// fails like a wrong secret and a stranger hears of neither.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "rendezvous/secure/secret_bytes.h"

namespace ddprun::rendezvous {

constexpr std::size_t key_bytes =
    32;  // What TLS 1.3 uses with SHA-256; half of it would be strong.

// RFC 5869 with SHA-256, `size` up to 255 * 32. Throws SecurityError.
SecretBytes hkdf_sha256(std::span<const unsigned char> secret, std::string_view salt,
                        std::string_view info, std::size_t size);

// Of the control connections of a job, between its agents and its coordinator.
SecretBytes control_key(const SecretBytes& job_secret, std::string_view run_id);
// Of the workers of a job, for the connections among themselves. They get this, never the secret.
SecretBytes worker_key(const SecretBytes& job_secret, std::string_view run_id);

}  // namespace ddprun::rendezvous
