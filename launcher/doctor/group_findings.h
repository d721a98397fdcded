// What is right and wrong between machines: what differs that must not, and which of them cannot
// reach each other. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

struct ProbedHost {
  int number = 0;            // In the list of hosts.
  std::string name;          // As the list has it.
  std::string address;       // At which the others reach it.
  double clock_ahead_s = 0;  // Of the clock of who asks.
  double clock_error_s = 0;  // Half of the round trip in which it was asked.
  MachineFacts facts;
};

// "host-a, host-b and 7 more"
std::string some_names(const std::vector<std::string>& names);

// True of two that share ports, memory and GPUs.
bool is_same_machine(const MachineFacts& one, const MachineFacts& other);

Findings compare_machines(const std::vector<ProbedHost>& members);

// `names`: of all hosts, by their numbers. `port`: the one of the rendezvous.
Findings examine_pairs(const std::vector<PairFacts>& pairs, const std::vector<std::string>& names,
                       int port);

// Of the hosts those that can form a job: without the ones that have something red of their own,
// and, while two of the rest cannot reach each other, without the one of which that is true most
// often.
std::vector<int> fit_hosts(int hosts, const Findings& findings);

}  // namespace ddprun::launcher
