// A machine with which nothing is wrong, to spoil one thing at a time.
#pragma once

#include <string>

#include "launcher/doctor/machine_facts.h"

namespace ddprun::testing {

inline launcher::MachineFacts healthy_machine(const std::string& name, int number) {
  const std::string address = "10.0.0." + std::to_string(number + 1);
  constexpr std::uint64_t gib = 1 << 30;
  launcher::MachineFacts facts;
  facts.version = "ddprun 1.0 (abc)";
  facts.host_name = name;
  facts.kernel = "Linux 6.1 x86_64";
  facts.boot_id = "boot-" + name;
  facts.network = "net:[1]";
  facts.names = {{name, {address}, ""}};
  facts.interfaces = {{"lo", true, true, 65'536, {"127.0.0.1"}},
                      {"eth0", true, false, 1'500, {address}},
                      {"docker0", true, false, 1'500, {"172.17.0.1"}},
                      {"ib9", false, false, 2'044, {}}};
  facts.default_interface = "eth0";
  facts.open_files = {1'024, 1'048'576};
  facts.locked_memory = {8 << 20, 8 << 20};
  facts.processes = {60'000, 60'000};
  facts.core_file = {0, launcher::no_limit};
  facts.shared_memory = {"/dev/shm", "", 8 * gib, 8 * gib, 100'000};
  facts.temporary = {"/tmp", "", 100 * gib, 50 * gib, 100'000};
  facts.memory_available = 32 * gib;
  facts.cpus = 8;
  facts.gpu = {2, 2, "550.54.15", "550.54.15", true, "12.4", "2.21.5"};
  facts.gpu.states = {{.index = 0, .memory_used = 600 << 20, .memory_total = 80 * gib},
                      {.index = 1, .memory_used = 600 << 20, .memory_total = 80 * gib}};
  facts.slots = 2;
  facts.secret_file = "/home/me/.config/ddprun/secret";
  facts.secret_proof = "00ff";
  return facts;
}

}  // namespace ddprun::testing
