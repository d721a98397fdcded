// One function for each kind of value: it knows the limits, and shows an example that would do.
#include "launcher/options/values.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include "command_line/nearest.h"
#include "launcher/machine/this_machine.h"
#include "launcher/output/whole_file.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/parse_number.h"
#include "rendezvous/store/access_list.h"

namespace ddprun::launcher {
namespace {

constexpr int nodes_max = rendezvous::nodes_limit;
constexpr int workers_max = rendezvous::workers_per_node_limit;
constexpr double seconds_max = 10'000'000;  // Four months.

[[noreturn]] void fail(const GivenOption& given, const std::string& expected) {
  throw usage_error(given.source + ": expected " + expected);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<int> whole_number(const std::string& text, int least, int most) {
  const auto number = rendezvous::parse_number<int>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

std::string unquoted(std::string text) {
  while (!text.empty() && (text.front() == '"' || text.front() == '\'')) text.erase(0, 1);
  while (!text.empty() && (text.back() == '"' || text.back() == '\'')) text.pop_back();
  return text;
}

}  // namespace

int parse_count(const GivenOption& given, int least, int most, const std::string& words) {
  const auto number = whole_number(trimmed(given.value), least, most);
  if (!number) {
    std::string range = words + "a whole number of at least " + std::to_string(least);
    if (most != std::numeric_limits<int>::max()) range += " and at most " + std::to_string(most);
    fail(given, range);
  }
  return *number;
}

std::chrono::milliseconds parse_seconds(const GivenOption& given, const std::string& text,
                                        std::chrono::milliseconds least) {
  const auto seconds = rendezvous::parse_number<double>(text);
  const double least_seconds = static_cast<double>(least.count()) / 1000;
  if (!seconds || !(*seconds >= least_seconds) || *seconds > seconds_max) {
    fail(given, "seconds, at least " + (least.count() == 0 ? "0" : std::to_string(least_seconds)) +
                    " and at most " + std::to_string(std::lround(seconds_max)));
  }
  return std::chrono::milliseconds(std::llround(*seconds * 1000));
}

NodeRange parse_nnodes(const GivenOption& given) {
  const auto parts = split(given.value, ':');
  const auto min = whole_number(trimmed(parts[0]), 1, nodes_max);
  const auto max = parts.size() == 2 ? whole_number(trimmed(parts[1]), 1, nodes_max) : min;
  if (parts.size() > 2 || !min || !max || *min > *max) {
    fail(given, "N or MIN:MAX with 0 < MIN <= MAX <= " + std::to_string(nodes_max) +
                    ", for example 4 or 2:4");
  }
  return {*min, *max};
}

namespace {

// As PyTorch counts them: CUDA stops at the first entry that it does not understand, as at the -1,
// "none" and "NoDevFiles" that say that there is none, or that is of another kind than the first;
// of a number it reads the digits ("3rd"), and it takes none where one comes twice. At one that is
// not below `there` it stops as well.
int count_visible(const std::string& list, int there) {
  std::string uuid;
  for (const char* kind : {"GPU-", "MIG-"}) {
    if (trimmed(list).rfind(kind, 0) == 0) uuid = kind;
  }
  std::set<std::string> found;
  for (const std::string& part : split(list, ',')) {
    std::string device = trimmed(part);
    if (uuid.empty()) device = device.substr(0, device.find_first_not_of("0123456789"));
    if (device.rfind(uuid, 0) != 0) break;
    if (uuid.empty() && !whole_number(device, 0, there - 1)) break;
    if (!found.insert(device).second) return 0;
  }
  return static_cast<int>(found.size());
}

int nvidia_gpus(const std::string& device_folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(device_folder.c_str()), ::closedir);
  int there = 0;
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.rfind("nvidia", 0) == 0 && whole_number(name.substr(6), 0, workers_max)) ++there;
  }
  return there;
}

// GPUs that no file nvidia0 stands for: of Windows below this Linux (WSL), of another maker, or of
// Jetson.
std::string uncounted_gpu(const std::string& device_folder) {
  for (const char* name : {"dxg", "kfd", "nvmap"}) {
    const std::string path = device_folder + "/" + name;
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return "";
}

// Which variable lists the GPUs: CUDA's, but where ROCm's driver is alone (/dev/kfd) those that
// ROCm heeds, of which Slurm sets ROCR_VISIBLE_DEVICES.
std::string gpu_list_name(const EnvironmentLookup& environment, const std::string& device_folder) {
  const bool rocm =
      nvidia_gpus(device_folder) == 0 && uncounted_gpu(device_folder) == device_folder + "/kfd";
  if (!rocm) return "CUDA_VISIBLE_DEVICES";
  const std::string name = device_list_name(environment);
  return environment(name) || !environment("ROCR_VISIBLE_DEVICES") ? name : "ROCR_VISIBLE_DEVICES";
}

}  // namespace

int count_listed_gpus(const std::string& visible_devices) {
  return count_visible(visible_devices, workers_max);
}

int count_gpus(const std::optional<std::string>& visible_devices,
               const std::string& device_folder) {
  const int there = nvidia_gpus(device_folder);
  if (!visible_devices) return there;
  if (there > 0) return count_visible(*visible_devices, there);
  // Of others the list is all that is known.
  return uncounted_gpu(device_folder).empty() ? 0 : count_listed_gpus(*visible_devices);
}

int parse_nproc(const GivenOption& given, const EnvironmentLookup& environment,
                const std::string& device_folder) {
  const std::string text = trimmed(given.value);
  if (const auto number = whole_number(text, 1, workers_max)) return *number;
  if (text == "cpu") return usable_cpus();
  if (text == "gpu" || text == "auto") {
    const std::string name = gpu_list_name(environment, device_folder);
    const auto visible = environment(name);
    const int gpus = count_gpus(visible, device_folder);
    if (gpus > 0) return gpus;
    if (const std::string device = visible ? "" : uncounted_gpu(device_folder); !device.empty()) {
      throw usage_error(given.source + ": there is a GPU (" + device +
                        "), of a kind that is not counted here; give a number, or name the GPUs "
                        "in " +
                        name);
    }
    if (text == "auto") return usable_cpus();
    throw usage_error(given.source + ": no GPU is visible: " +
                      (visible ? name + "=\"" + *visible + "\" names none that is there"
                               : "there is no " + device_folder + "/nvidia0") +
                      "; give a number, or cpu");
  }
  fail(given, "a whole number of at least 1 and at most " + std::to_string(workers_max) +
                  ", auto, cpu or gpu; or MIN: and one of these, to go on with fewer after a loss");
}

WorkerRange parse_workers(const GivenOption& given, const EnvironmentLookup& environment) {
  const std::size_t colon = given.value.find(':');
  if (colon == std::string::npos) {
    const int workers = parse_nproc(given, environment);
    return {workers, workers};
  }
  const int most = parse_nproc({given.value.substr(colon + 1), given.source}, environment);
  const auto least = whole_number(trimmed(given.value.substr(0, colon)), 1, most);
  if (least) return {*least, most};
  fail(given, "MIN:MAX with a MIN from 1 to MAX, which is " + std::to_string(most));
}

HostPort parse_endpoint(const GivenOption& given) {
  const std::string text = trimmed(given.value);
  const std::string expected = "HOST, HOST:PORT or [IPv6]:PORT, for example node0:29500";
  HostPort result;
  std::optional<std::string> port;
  in6_addr address{};
  // No other machine knows this one's interfaces, and all nodes are told the same address.
  if (text.find('%') != text.npos) {
    fail(given,
         "an address without a zone (%eth0): one that is valid on a single link is none that all "
         "nodes can use; give a name or another address of that host");
  }
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == text.npos) fail(given, expected);
    result.host = text.substr(1, close - 1);
    if (::inet_pton(AF_INET6, result.host.c_str(), &address) != 1) {
      fail(given, "an IPv6 address between the brackets, for example [::1]:29500");
    }
    const std::string rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') fail(given, expected);
    if (!rest.empty()) port = rest.substr(1);
  } else if (::inet_pton(AF_INET6, text.c_str(), &address) == 1) {
    result.host = text;
  } else {
    const std::size_t colon = text.find(':');
    result.host = text.substr(0, colon);
    if (colon != text.npos) port = text.substr(colon + 1);
    const bool plain = std::all_of(result.host.begin(), result.host.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
    });
    if (result.host.empty() || !plain || result.host[0] == '-') fail(given, expected);
  }
  if (port) {
    const auto number = whole_number(*port, 0, 65'535);
    if (!number) fail(given, expected + ", with a port in 0..65535");
    result.port = static_cast<std::uint16_t>(*number);
  }
  return result;
}

ListenPlace parse_listen(const GivenOption& given) {
  const std::string text = trimmed(given.value);
  const std::string expected = "PORT or ADDRESS:PORT, for example 9400 or 0.0.0.0:9400";
  ListenPlace place;
  const std::size_t colon = text.rfind(':');
  std::string port = text;
  if (colon != text.npos) {
    port = text.substr(colon + 1);
    place.host = text.substr(0, colon);
    if (place.host.starts_with('[') && place.host.ends_with(']')) {
      place.host = place.host.substr(1, place.host.size() - 2);
    }
    in6_addr address{};
    const bool numeric = ::inet_pton(AF_INET, place.host.c_str(), &address) == 1 ||
                         ::inet_pton(AF_INET6, place.host.c_str(), &address) == 1;
    if (!numeric) fail(given, expected);
  }
  const auto number = whole_number(port, 0, 65'535);
  if (!number) fail(given, expected);
  place.port = static_cast<std::uint16_t>(*number);
  return place;
}

std::map<std::string, std::string> parse_conf(const GivenOption& given) {
  std::map<std::string, std::string> conf;
  if (trimmed(unquoted(given.value)).empty()) return conf;
  for (const std::string& part : split(unquoted(given.value), ',')) {
    const std::size_t equals = part.find('=');
    const std::string key = unquoted(trimmed(part.substr(0, equals)));
    const std::string value = equals == part.npos ? "" : unquoted(trimmed(part.substr(equals + 1)));
    if (key.empty() || value.empty()) {
      fail(given, "KEY=VALUE,KEY=VALUE, but found \"" + part + "\"");
    }
    conf[key] = value;
  }
  return conf;
}

bool parse_bool(const GivenOption& given, const std::string& text) {
  std::string lower = text;
  for (char& letter : lower) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  for (const char* yes : {"1", "true", "t", "yes", "y"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"0", "false", "f", "no", "n"}) {
    if (lower == no) return false;
  }
  fail(given, "true or false instead of \"" + text + "\"");
}

std::set<int> parse_ranks(const GivenOption& given, const std::string& text) {
  std::set<int> ranks;
  for (const std::string& part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = whole_number(trimmed(part.substr(0, dash)), 0, workers_max);
    const auto last =
        dash == part.npos ? first : whole_number(trimmed(part.substr(dash + 1)), 0, workers_max);
    if (!first || !last || *first > *last) {
      fail(given, "local ranks such as 0,4-7, but found \"" + part + "\"");
    }
    for (int rank = *first; rank <= *last; ++rank) ranks.insert(rank);
  }
  return ranks;
}

StdMap parse_std_map(const GivenOption& given) {
  StdMap map;
  const auto std_of = [](const std::string& text) -> std::optional<Std> {
    const auto number = whole_number(text, 0, 3);
    return number ? std::optional(static_cast<Std>(*number)) : std::nullopt;
  };
  if (const auto everywhere = std_of(trimmed(given.value))) {
    map.everywhere = *everywhere;
    return map;
  }
  map.is_map = true;
  for (const std::string& part : split(given.value, ',')) {
    const auto sides = split(trimmed(part), ':');
    const auto streams = sides.size() == 2 ? std_of(sides[1]) : std::nullopt;
    if (!streams) {
      fail(given, "0, 1, 2, 3 or a map such as 0:3,4-7:1 (local ranks : streams), but found \"" +
                      part + "\"");
    }
    for (int rank : parse_ranks(given, sides[0])) {
      if (!map.by_local_rank.emplace(rank, *streams).second) {
        fail(given, "each local rank once, but " + std::to_string(rank) + " is there twice");
      }
    }
  }
  return map;
}

std::vector<int> parse_signals(const GivenOption& given) {
  std::vector<int> signals;
  if (trimmed(given.value).empty()) return signals;
  for (const std::string& part : split(given.value, ',')) {
    std::string name = trimmed(part);
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (name.rfind("SIG", 0) == 0) name.erase(0, 3);
    int found = whole_number(name, 1, SIGRTMAX).value_or(0);
    for (int signal = 1; signal < SIGRTMIN && found == 0; ++signal) {
      if ("SIG" + name == rendezvous::signal_name(signal)) found = signal;
    }
    if (found == 0)
      fail(given, "names of signals such as SIGTERM,SIGUSR1, but found \"" + part + "\"");
    if (found == SIGKILL || found == SIGSTOP) {
      fail(given, "signals that a program can handle, which " + part + " is not");
    }
    if (found == SIGCHLD || found == SIGSEGV || found == SIGBUS || found == SIGFPE ||
        found == SIGILL) {
      fail(given, "signals from outside; " + part + " is one that ddprun itself may get");
    }
    if (std::find(signals.begin(), signals.end(), found) == signals.end()) signals.push_back(found);
  }
  return signals;
}

std::vector<std::string> parse_networks(const GivenOption& given) {
  std::vector<std::string> networks;
  if (trimmed(given.value).empty()) return networks;
  for (const std::string& part : split(given.value, ',')) {
    networks.push_back(trimmed(part));
    rendezvous::AccessList check;
    if (!check.allow(networks.back())) {
      fail(given, "addresses or networks such as 10.0.0.7,10.1.0.0/16, but found \"" + part + "\"");
    }
  }
  return networks;
}

std::string parse_output_file(const GivenOption& given) {
  namespace fs = std::filesystem;
  const fs::path path(given.value);
  std::error_code ignored;
  const auto is_control = [](unsigned char c) { return c < 32 || c == 127; };
  if (path.empty() || std::any_of(given.value.begin(), given.value.end(), is_control)) {
    fail(given, "the name of a file");
  }
  if (given.value == "-") fail(given, std::string("a file; ") + dash_is_no_file);
  if (fs::is_directory(path, ignored)) fail(given, "a file, but that is a folder");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::none) {
    fail(given,
         "a file in a folder that can be looked at; " + folder.string() + ": " + error.message());
  }
  if (!fs::is_directory(status)) {
    fail(given, "a file in a folder that exists, but there is no folder " + folder.string());
  }
  // Found out now rather than when there is something to write. Effective rights, as open() has.
  const auto may = [](const fs::path& place, int rights) {
    return ::faccessat(AT_FDCWD, place.c_str(), rights, AT_EACCESS) == 0;
  };
  if (!may(path, W_OK) && !may(folder, W_OK | X_OK)) {
    fail(given,
         "a file that this user may write; " + folder.string() + ": " + std::strerror(errno));
  }
  return given.value;
}

std::string parse_choice(const GivenOption& given, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), given.value) != choices.end()) return given.value;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  const std::string guess = command_line::nearest(given.value, choices);
  fail(given, (choices.size() == 1 ? list : "one of " + list) +
                  (guess.empty() ? "" : "; did you mean " + guess + "?"));
}

}  // namespace ddprun::launcher
