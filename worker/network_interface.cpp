// Interfaces as Gloo, NCCL or our option name them, and the kernel's own choice of an address.
#include "worker/network_interface.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace ddprun::worker {
namespace {

// An address as bytes, in the order of the network: 4 or 16, none when it is no address.
std::vector<unsigned char> bytes_of_address(const std::string& text) {
  std::vector<unsigned char> bytes(16);
  if (::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) {
    bytes.resize(4);
  } else if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) != 1) {
    bytes.clear();
  }
  return bytes;
}

bool is_in_network(const std::string& address, const std::string& network, int bits) {
  const auto a = bytes_of_address(address), n = bytes_of_address(network);
  if (a.empty() || a.size() != n.size() || bits > static_cast<int>(8 * a.size())) return false;
  for (int bit = 0; bit < bits; ++bit) {
    const int mask = 0x80 >> bit % 8;
    if ((a[static_cast<std::size_t>(bit / 8)] & mask) !=
        (n[static_cast<std::size_t>(bit / 8)] & mask)) {
      return false;
    }
  }
  return true;
}

// "10.0.0.0/8": the network and its bits; nothing for other text.
std::optional<std::pair<std::string, int>> parse_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const std::string bits = text.substr(slash + 1);
  const auto network = bytes_of_address(text.substr(0, slash));
  if (network.empty() || bits.empty() || bits.size() > 3) return std::nullopt;
  if (bits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int count = std::stoi(bits);
  if (count > static_cast<int>(8 * network.size())) return std::nullopt;
  return std::pair(text.substr(0, slash), count);
}

bool means(const std::string& word, const InterfaceAddress& one, bool prefix) {
  if (const auto network = parse_network(word)) {
    return is_in_network(one.address, network->first, network->second);
  }
  const auto address = bytes_of_address(word);
  if (!address.empty()) return address == bytes_of_address(one.address);
  return prefix ? one.interface.rfind(word, 0) == 0 : one.interface == word;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

std::string list_of(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& one : all) {
    text += (text.empty() ? "" : ", ") + one.interface + " (" + one.address + "/" +
            std::to_string(one.prefix_bits) + ")";
  }
  return text.empty() ? "none that is up" : text;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  return rendezvous::usable_addresses(rendezvous::interface_addresses());
}

std::optional<InterfaceChoice> find_interface_choice(const std::string& option,
                                                     const EnvironmentLookup& lookup) {
  if (!option.empty()) return InterfaceChoice{option, "interface", false};
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const auto value = lookup(name);
    if (value && !value->empty()) return InterfaceChoice{*value, name, name[0] == 'N'};
  }
  return std::nullopt;
}

InterfaceAddress choose_interface(const InterfaceChoice& choice,
                                  const std::vector<InterfaceAddress>& all) {
  std::string text = choice.text;
  const bool excludes = choice.names_are_prefixes && text.starts_with('^');
  const bool exact = choice.names_are_prefixes && text.starts_with('=');
  if (excludes || exact) text.erase(0, 1);
  const bool prefix = choice.names_are_prefixes && !exact;
  const std::vector<std::string> words = words_of(text);
  if (excludes) {
    for (const InterfaceAddress& one : all) {
      const auto named = [&](const std::string& word) { return means(word, one, true); };
      if (!one.loopback && std::none_of(words.begin(), words.end(), named)) return one;
    }
  }
  for (const std::string& word : excludes ? std::vector<std::string>{} : words) {
    for (const InterfaceAddress& one : all) {
      if (means(word, one, prefix)) return one;
    }
  }
  throw WorkerEnvError(choice.said_in + " \"" + choice.text +
                       "\" is no interface, address or network of this host, which has " +
                       list_of(all));
}

std::string chosen_address(const std::string& option) {
  const auto choice = find_interface_choice(option, environment_variable);
  return choice ? choose_interface(*choice, interface_addresses()).address : "";
}

std::string address_towards(const std::string& peer) {
  sockaddr_storage address{};
  socklen_t size = 0;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      ::inet_pton(AF_INET, peer.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(9);  // Any: connecting a datagram socket sends nothing.
    size = sizeof *v4;
  } else if (auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
             ::inet_pton(AF_INET6, peer.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(9);
    size = sizeof *v6;
  } else {
    return "";
  }
  const int fd = ::socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  std::string own;
  socklen_t own_size = sizeof address;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &own_size) == 0) {
    own = rendezvous::numeric_address(reinterpret_cast<sockaddr*>(&address));
  }
  ::close(fd);
  return own;
}

}  // namespace ddprun::worker
