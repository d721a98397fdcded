// What the doctor has found, as a person, a program and a launcher read it. A core: no sockets,
// threads or clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine_facts.h"
#include "launcher/hosts/host_list.h"

namespace ddprun::launcher {

struct ExaminedHost {
  Host host;
  std::optional<MachineFacts> facts;  // Nothing of one that could not be asked.
};

struct DoctorReport {
  std::string version;   // Of the ddprun that asks.
  std::string platform;  // What `ddprun env` says; "" where there is nothing to say.
  bool alone = true;     // Only this machine.
  int port = 0;          // Of the rendezvous.
  bool is_sample = false;
  std::vector<ExaminedHost> hosts;
  std::vector<PairFacts> pairs;
  Findings findings;
};

// For a terminal or a file, in lines of 80 columns; the last lines are made to be pasted.
std::string report_text(const DoctorReport& report, bool colors);

// A line for each thing that is red; "" where nothing is.
std::string report_brief(const DoctorReport& report);

std::string report_json(const DoctorReport& report);

// For --hostfile: the hosts that can form a job, with as many workers as --nproc-per-node auto
// would start. "" when there is none.
std::string hostfile_text(const DoctorReport& report);

}  // namespace ddprun::launcher
