// Apart from the job, because a dry run and a check of hosts need it without one.
#include "launcher/ssh/hosts_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "launcher/hosts/chosen_environment.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/processes/child_process.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/secure/job_secret.h"

namespace ddprun::launcher {

std::string own_folder() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  // The shell's word counts while it names this folder: a program may have changed it since.
  const char* shell = std::getenv("PWD");
  if (shell != nullptr && shell[0] == '/' && std::filesystem::equivalent(shell, here, error)) {
    return shell;
  }
  return here.string();
}

bool is_this_machine(const Host& host) {
  if (host.login != host.name) return false;  // As another user, which takes a login.
  if (host.name == "localhost" || host.name == rendezvous::own_host_name()) return true;
  const std::vector<std::string> own = own_addresses();
  return host.name == "127.0.0.1" || host.name == "::1" ||
         std::find(own.begin(), own.end(), host.name) != own.end();
}

rendezvous::SecretBytes fresh_secret() {
  return rendezvous::make_secret_text("cannot make the job's secret");
}

std::shared_ptr<const std::string> own_copy() {
  std::ifstream file("/proc/self/exe", std::ios::binary);  // Also when its name is gone.
  auto copy = std::make_shared<std::string>(std::istreambuf_iterator<char>(file),
                                            std::istreambuf_iterator<char>());
  if (!file || copy->empty()) {
    throw std::runtime_error("--copy-self: cannot read /proc/self/exe");
  }
  // dd on the other side reads whole blocks, and would wait for the rest of the last one.
  const std::size_t blocks = (copy->size() + copy_block_bytes - 1) / copy_block_bytes;
  copy->resize(blocks * copy_block_bytes, '\0');
  return copy;
}

std::vector<std::string> node_command(const OverSsh& over_ssh, const Host& host,
                                      const std::string& launcher_path, const std::string* copy,
                                      const std::vector<std::string>& arguments) {
  if (is_this_machine(host)) {
    std::vector<std::string> words{launcher_path};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  std::optional<std::size_t> blocks;
  if (copy != nullptr) blocks = copy->size() / copy_block_bytes;
  return ssh_command(over_ssh.ssh_options, host.login,
                     remote_command(launcher_path, blocks, arguments));
}

std::string hosts_plan_text(const LaunchOptions& options, const std::string& launcher_path) {
  const OverSsh& over_ssh = options.over_ssh;
  const auto copy = over_ssh.copy_self ? own_copy() : nullptr;
  std::string text =
      fmt::format("program   {}\nnodes     {}, started over ssh from here\n", options.program_name,
                  rendezvous::counted(static_cast<int>(over_ssh.hosts.size()), "node"));
  for (std::size_t i = 0; i < over_ssh.hosts.size(); ++i) {
    const Host& host = over_ssh.hosts[i];
    std::string command;
    if (is_this_machine(host)) {
      command = "no ssh";
    } else {
      for (const std::string& word : node_command(over_ssh, host, launcher_path, copy.get())) {
        command += (command.empty() ? "" : " ") + shell_word(word);
      }
    }
    const std::string& workers = over_ssh.workers[i];
    text += fmt::format("node {:<4} {}: {} {}, {}\n", i, host.name, workers,
                        workers == "1" ? "worker" : "workers", command);
  }
  for (const std::string& variable :
       choose_environment(over_ssh.exports, own_environment()).variables) {
    text += "variable  " + variable.substr(0, variable.find('=')) + "\n";
  }
  for (const std::string& note : options.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace ddprun::launcher
