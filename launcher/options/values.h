// What stands behind the "=" of an option -> a value, with every check. Pure but for counting
// devices and CPUs. Everything here throws UsageExit naming what was given and what was expected.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/options/arguments.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// `words`: what else the option takes, for the message: "auto, or ".
int parse_count(const GivenOption& given, int least, int most, const std::string& words = "");
std::chrono::milliseconds parse_seconds(const GivenOption& given, const std::string& text,
                                        std::chrono::milliseconds least);

struct NodeRange {
  int min = 1;
  int max = 1;
};
NodeRange parse_nnodes(const GivenOption& given);  // "N" or "MIN:MAX"

// "N", "auto", "cpu" or "gpu". `device_folder` is /dev, or a test's.
int parse_nproc(const GivenOption& given, const EnvironmentLookup& environment,
                const std::string& device_folder = "/dev");
// The same, or "MIN:" and one of them: this node may go on with so few.
struct WorkerRange {
  int min = 1;
  int max = 1;
};
WorkerRange parse_workers(const GivenOption& given, const EnvironmentLookup& environment);
// Without asking CUDA, which takes seconds and would hold a context on every GPU: the device files
// nvidia0, nvidia1 ..., of which CUDA_VISIBLE_DEVICES may name some.
int count_gpus(const std::optional<std::string>& visible_devices, const std::string& device_folder);
int count_listed_gpus(const std::string& visible_devices);  // Whether they are there or not.

// "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address. Brackets are taken off.
struct HostPort {
  std::string host;
  std::optional<std::uint16_t> port;
};
HostPort parse_endpoint(const GivenOption& given);

// "9400", "0.0.0.0:9400" or "[::]:9400": a port of this machine, by itself on 127.0.0.1.
ListenPlace parse_listen(const GivenOption& given);

// "10.0.0.7,10.1.0.0/16", each one checked.
std::vector<std::string> parse_networks(const GivenOption& given);

// "k=v,k=v"; quotes around keys and values are taken off.
std::map<std::string, std::string> parse_conf(const GivenOption& given);
bool parse_bool(const GivenOption& given, const std::string& text);

std::set<int> parse_ranks(const GivenOption& given, const std::string& text);  // "0,4-7"
StdMap parse_std_map(const GivenOption& given);                                // "3" or "0:3,4-7:1"
std::vector<int> parse_signals(const GivenOption& given);                      // "SIGTERM,INT,10"

// A file that can be written, as far as that is known beforehand: its folder is there, this user
// may write in it, or to the file that is there, and that is no folder.
std::string parse_output_file(const GivenOption& given);
// output_options.cpp
std::size_t parse_bytes(const GivenOption& given, std::size_t least);  // "64M", "100k", "1GiB"
// "apple,orange"; two commas are one that belongs to the text. "" = none.
std::vector<std::string> parse_texts(const GivenOption& given);

// One of `choices`, with a suggestion otherwise.
std::string parse_choice(const GivenOption& given, const std::vector<std::string>& choices);

}  // namespace ddprun::launcher
