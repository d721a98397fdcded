// What a launcher that starts others over ssh has for each host before any of them has answered:
// the command that starts its launcher, and what goes through that command's stdin.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/hosts/host_list.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/options/launch_options.h"
#include "rendezvous/secure/secret_bytes.h"

namespace ddprun::launcher {

// The folder as the user knows it: with symbolic links, whose targets other hosts may not have.
std::string own_folder();

// True where no ssh is needed to reach it.
bool is_this_machine(const Host& host);

// For this job alone, made where nobody sees it. Throws std::system_error.
rendezvous::SecretBytes fresh_secret();

// This program in whole blocks (copy_block_bytes); what follows its end does not matter to the
// kernel. Throws std::runtime_error.
std::shared_ptr<const std::string> own_copy();

// `copy`: of this program, which the host takes from stdin; null where it has its own.
std::vector<std::string> node_command(const OverSsh& over_ssh, const Host& host,
                                      const std::string& launcher_path, const std::string* copy,
                                      const std::vector<std::string>& arguments = {node_argument});

// For --dry-run.
std::string hosts_plan_text(const LaunchOptions& options, const std::string& launcher_path);

}  // namespace ddprun::launcher
