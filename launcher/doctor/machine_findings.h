// From the facts of one machine to what is right and wrong with it. A core: no sockets, threads or
// clock.
#pragma once

#include <string>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

struct MachinePlace {
  int number = 0;
  std::string name;     // As the list of hosts has it.
  bool alone = true;    // No other host was asked about.
  std::string address;  // At which the others reach it; "" = nobody does.
  std::string address_reason;
};

Findings examine_machine(const MachineFacts& facts, const MachinePlace& place);

// "eth0" of the address, or null.
const NetworkInterface* interface_of(const MachineFacts& facts, const std::string& address);

std::string size_text(std::uint64_t bytes);  // "64 MiB"

}  // namespace ddprun::launcher
