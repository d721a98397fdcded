// What the doctor and its probe on each host say to each other, over the probe's stdin and stdout.
// A core: no sockets, threads or clock.
//
//   probe    \001ddprun-doctor {hello}\n     as soon as it runs
//   doctor   {ask}\n                         one at a time
//   probe    \001ddprun-doctor {answer}\n
//
// The end of its stdin ends the probe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

// Behind ddprun, on the other host's command line.
inline constexpr const char* probe_words[] = {"doctor", "--probe"};
constexpr int probe_protocol = 1;
inline constexpr std::string_view probe_mark = "\001ddprun-doctor ";
constexpr std::size_t ask_bytes_max = 1 << 20;

struct ProbeHello {
  int protocol = probe_protocol;
  std::string version;         // Of ddprun.
  std::string ssh_connection;  // The variable SSH_CONNECTION.
};

struct ProbeAsk {
  enum class What { Clock, Facts, Listen, Connect };
  What what = What::Clock;
  std::vector<std::string> names;  // Facts: to resolve besides its own.
  std::string nonce;               // Facts: what the secret is proved over.
  std::string token;               // Listen, Connect: of the host that listens.
  std::string address;             // Connect.
  int rendezvous_port = 0;         // Listen, Connect: 0 = not this one.
  int ephemeral_port = 0;          // Connect.
  double timeout_s = 3;            // Connect: of each step.
};

struct Listening {
  bool has_rendezvous = false;  // It listens on the port of the ask.
  std::string holder;           // Who has it, when it does not.
  int ephemeral_port = 0;       // 0: cannot listen at all.
  std::string problem;
};

std::string to_line(const ProbeHello& hello);
std::string to_line(const ProbeAsk& ask);
std::string to_line(const MachineFacts& facts);
std::string to_line(const Listening& listening);
std::string to_line(const PairFacts& pair);
std::string clock_line(double wall_s);

// Nothing for a line that is none of these. What they hold is as another machine has said it, but
// short and printable.
std::optional<ProbeHello> read_probe_hello(std::string_view line);
std::optional<ProbeAsk> read_probe_ask(std::string_view line);
std::optional<MachineFacts> read_machine_facts(std::string_view line);
std::optional<Listening> read_listening(std::string_view line);
std::optional<PairFacts> read_pair_facts(std::string_view line);
std::optional<double> read_clock(std::string_view line);

// The facts as JSON, without the proof of the secret: for --json and people's tickets.
std::string facts_json(const MachineFacts& facts);

// Of what another host has said: at most so many bytes, and none that moves a terminal's cursor.
std::string harmless(std::string_view text, std::size_t bytes_max = 300);

}  // namespace ddprun::launcher
