// What ssh is called with to start a node's launcher on another host. A core: no sockets, threads
// or clock.
//
// All that the node is told (arguments, environment, folder, secret) comes to it through stdin
// (node_request.h). So the command line is the same for every job, nothing of the job can be seen
// in a list of processes, and no shell between here and there can take a word of it apart.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

// The one argument of a launcher that is told the rest through stdin.
inline constexpr const char* node_argument = "--node-on-stdin";

// A copy of the launcher is sent in whole blocks, so that who reads it there takes not one byte of
// what follows.
constexpr std::size_t copy_block_bytes = 64 * 1024;
// What the command says on stdout when it wants the copy.
inline constexpr const char* copy_wanted = "ddprun-copy-wanted";
// Whether it has said so in `said`, from which the word is taken: it is none for people, should the
// host fail.
bool take_copy_wanted(std::string& said);

// One word for any shell: sh, bash, csh, fish.
std::string shell_word(const std::string& word);

// The words of --ssh-options; quotes hold words with blanks together. Throws std::invalid_argument
// for a quote that is not closed.
std::vector<std::string> split_words(const std::string& text);

// For the login shell of the other host. `launcher`: this program's own path; where nothing is
// there, ddprun on PATH. `copy_blocks`: of a copy that is sent where there is neither; the copy is
// gone when its launcher has ended. `arguments`: of the launcher there, which anybody may read.
std::string remote_command(const std::string& launcher, std::optional<std::size_t> copy_blocks,
                           const std::vector<std::string>& arguments = {node_argument});

// `options`: the user's own, which come first, as ssh takes the first value that it is given.
std::vector<std::string> ssh_command(const std::vector<std::string>& options,
                                     const std::string& login, const std::string& command);

// What a host's part in a job failed by before it began: in ssh's own words, and what to do.
// `status`: of ssh; `said`: what came on stderr.
std::string ssh_failure(int status, const std::string& said, const std::string& login,
                        bool copies_self);

// Whether an sshd closed the connection before any login, as it does when too many are at once.
bool is_turned_away(int status, const std::string& said);

// Why the program that leads to a host could not be started, and what to do.
struct StartFailure {
  std::string what;
  std::string advice;
};
StartFailure start_failure(const std::string& program, int error_number);

// The last lines of it, at most three, on one that moves no terminal's cursor.
std::string last_words_of(const std::string& said);

}  // namespace ddprun::launcher
