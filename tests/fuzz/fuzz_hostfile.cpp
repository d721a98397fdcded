// Any text is a list of hosts that ssh can be given and that comes back from what it was read as,
// or is refused with a reason.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "launcher/hosts/host_list.h"
#include "tests/fuzz/finding.h"

using namespace ddprun::launcher;
using ddprun::fuzz::require;

namespace {

bool goes_onto_a_command_line(const std::string& word) {
  if (word.empty() || word[0] == '-') return false;
  for (const unsigned char c : word) {
    if (c <= 32 || c >= 127 ||
        std::string("'\"`$;&|<>(){}[]*?!#~,").find(char(c)) != std::string::npos)
      return false;
  }
  return true;
}

void check(const std::function<HostList()>& parse) {
  try {
    const HostList list = parse();
    require(!list.hosts.empty() && list.hosts.size() <= hosts_max, "no hosts, or too many");
    std::set<std::string> logins;
    std::string again;
    for (const Host& host : list.hosts) {
      require(goes_onto_a_command_line(host.login), "a login that is none: " + host.login);
      require(logins.insert(host.login).second, "a login twice: " + host.login);
      require(!host.workers || (*host.workers >= 1 && *host.workers <= workers_of_host_max),
              "a number of workers that is none");
      const std::string user = host.login.substr(0, host.login.size() - host.name.size());
      again +=
          user + (host.name.find(':') != std::string::npos ? "[" + host.name + "]" : host.name);
      if (host.workers) again += " slots=" + std::to_string(*host.workers);
      again += "\n";
    }
    HostList read = parse_hostfile(again, "again");
    require(read.hosts.size() == list.hosts.size(), "hosts do not come back: " + again);
    for (std::size_t i = 0; i < read.hosts.size(); ++i) {
      read.hosts[i].addresses = list.hosts[i].addresses;
      require(read.hosts[i] == list.hosts[i], "a host comes back as another: " + again);
    }
  } catch (const HostListError& error) {
    require(error.what()[0] != '\0', "an error without a reason");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check([&] { return parse_hostfile(text, "hosts"); });
  check([&] { return parse_host_list(text); });
  return 0;
}
