// Taking apart the url that says where workers meet (InitMethod of worker_env.h).
// A core: no sockets, threads or clock.
#include <algorithm>

#include "rendezvous/parse_number.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

[[noreturn]] void refuse(const std::string& url, const std::string& problem) {
  throw WorkerEnvError("init method \"" + url + "\": " + problem +
                       "; expected env://, tcp://HOST:PORT or file:///PATH");
}

int number(const std::string& url, const std::string& what, const std::string& text, int least,
           int most) {
  const auto value = rendezvous::parse_number<int>(text);
  if (!value || *value < least || *value > most) {
    refuse(url, what + " \"" + text + "\" is not a whole number of " + std::to_string(least) +
                    ".." + std::to_string(most));
  }
  return *value;
}

// "rank=0&world_size=2"
void parse_query(const std::string& url, std::string query, MeetingPlace& place) {
  constexpr int ranks_max = 1 << 20;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string item = query.substr(0, end);
    query.erase(0, end + 1);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, equals);
    const std::string value = equals < item.size() ? item.substr(equals + 1) : "";
    if (name == "rank") {
      place.rank = number(url, "rank", value, 0, ranks_max);
    } else if (name == "world_size") {
      place.world_size = number(url, "world_size", value, 1, ranks_max);
    } else {
      refuse(url, "\"" + name + "\" is neither rank nor world_size");
    }
  }
}

// "host:29500", "10.0.0.7:29500", "[fe80::1]:29500"
void parse_address(const std::string& url, const std::string& address, MeetingPlace& place) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) refuse(url, "a host and a port are needed");
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    refuse(url, "an IPv6 address stands in brackets, as in tcp://[fd00::7]:29500");
  }
  if (host.empty() || host.find_first_of("/ ") != std::string::npos) {
    refuse(url, "\"" + host + "\" is not a host");
  }
  place.host = host;
  place.port =
      static_cast<std::uint16_t>(number(url, "the port", address.substr(colon + 1), 1, 65'535));
}

}  // namespace

MeetingPlace parse_init_url(const std::string& url) {
  MeetingPlace place;
  const std::size_t question = std::min(url.find('?'), url.size());
  const std::string where = url.substr(0, question);
  if (question < url.size()) parse_query(url, url.substr(question + 1), place);
  const auto after = [&](const std::string& scheme) { return where.substr(scheme.size()); };
  const auto starts = [&](const std::string& scheme) { return where.rfind(scheme, 0) == 0; };
  if (where == "env://") return place;
  if (starts("tcp://")) {
    place.kind = MeetingPlace::Kind::Tcp;
    std::string address = after("tcp://");
    if (!address.empty() && address.back() == '/') address.pop_back();
    parse_address(url, address, place);
  } else if (starts("file://")) {
    place.kind = MeetingPlace::Kind::File;
    place.path = after("file://");
    if (place.path.empty() || place.path.front() != '/' || place.path.back() == '/') {
      refuse(url, "a file's absolute path is needed, as in file:///shared/run7");
    }
  } else {
    refuse(url, "it begins with none of the three");
  }
  return place;
}

}  // namespace ddprun::worker
