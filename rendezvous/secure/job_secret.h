// The secret of a user's jobs: a file with random text, equal on all nodes. Who has it may join.
//
// Where it is not given, it lies in the user's configuration folder and is made at first use: nodes
// that share a home then share it without a word. It is never printed, and a message about it names
// the file alone.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/secure/secret_bytes.h"
#include "rendezvous/secure/security_error.h"

namespace ddprun::rendezvous {

constexpr std::size_t secret_chars_min = 32;  // 128 bits, where each is a hexadecimal digit.
constexpr std::size_t secret_chars_max = 4096;

// $XDG_CONFIG_HOME/ddprun/secret, or ~/.config/ddprun/secret; "" where neither is set.
std::string usual_secret_file(
    const std::function<std::optional<std::string>(const std::string& name)>& environment);

// What is wrong with the content of a secret file, less the blanks at its end; "" = nothing.
std::string secret_problem(std::string_view text);

// A new one, of 64 hexadecimal digits, made where nobody sees it. Throws std::system_error, whose
// text begins with `tried`.
SecretBytes make_secret_text(const char* tried);

// Reads a secret. `file`: a path, or "-", /dev/stdin and /dev/fd/N for what this process was
// started with. Throws SecurityError: it is not there, is no regular file, may be read or written
// by others, is too short or too long.
SecretBytes read_secret(const std::string& file);

// The same for the file at the usual place, which is made if it is not there: complete or not at
// all, in a folder of mode 0700, by one of several that begin at the same time. `made` tells.
SecretBytes read_or_make_secret(const std::string& file, bool& made);

// Whether read_secret() reads this process's stdin: its workers inherit what is left there.
bool secret_comes_on_stdin(const std::string& file);

}  // namespace ddprun::rendezvous
