// What a node and its starter say to each other, and the address that they meet at.
#include "launcher/hosts/node_request.h"

#include <string>

#include "launcher/hosts/endpoint_choice.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;

namespace {

// What comes out of MarkedText when `bytes` come in pieces of `size`: "text", <message>.
std::string parted(const std::string& bytes, std::size_t size) {
  std::string result;
  MarkedText text(message_mark("abc"));
  const MarkedText::Into into{
      [&](std::string_view part) { result += part; },
      [&](std::string_view line) { result += "<" + std::string(line) + ">"; }};
  for (std::size_t i = 0; i < bytes.size(); i += size) text.add(bytes.substr(i, size), into);
  text.finish(into);
  return result;
}

HostFacts here(const std::string& name) { return {.is_here = true, .name = name}; }
HostFacts there(const std::string& name, const std::string& connection) {
  return {.name = name, .ssh_connection = connection};
}
std::string endpoint(const std::vector<HostFacts>& hosts) {
  const EndpointChoice choice = choose_endpoint(hosts, {"127.0.0.1", "10.0.0.9", "192.168.1.9"});
  CHECK((choice.problem.empty() ? !choice.reason.empty() : choice.host.empty()));
  return choice.problem.empty() ? choice.host : choice.problem;
}

}  // namespace

TEST_CASE("17.3: a request comes back as it was, whatever bytes it holds", "[hosts]") {
  std::string every_byte;
  for (int byte = 1; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  NodeRequest request{.mark = "abc",
                      .folder = "/home/me/with \"quotes\" and \n lines",
                      .variables = {"A=1", "B=\xff\xfe not UTF-8", "C=\xc3\xa4"},
                      .arguments = {"--nnodes=2", "--", "./train", "it's", "", every_byte},
                      .has_secret = true,
                      .any_port = true};
  const std::string line = to_line(request);
  CHECK(line.find('\n') == line.size() - 1);
  CHECK(read_request(line.substr(0, line.size() - 1)) == request);
  request.is_host = false;
  CHECK(read_request(to_line(request)) == request);
  const NodeEnd end{3, 1, true, "block\nof \xff lines", true, "{}", "{\"a\":1}"};
  const std::string said = to_line("abc", end);
  CHECK(read_end(said.substr(message_mark("abc").size())) == end);
  CHECK(read_opened(R"({"opened": 4711})") == 4711);
  CHECK(begun_line("abc") == message_mark("abc") + R"({"begun":true})" + "\n");
  CHECK(is_begun(R"({"begun":true})"));
}

TEST_CASE("17.3: what is no message is none", "[hosts]") {
  for (const char* bad : {"", "{", "[]", "3", "{}", R"({"opened": "x"})", R"({"mark": 3})"}) {
    CHECK_FALSE(read_request(bad));
    CHECK_FALSE(read_hello(bad));
    CHECK_FALSE(is_begun(bad));
    CHECK_FALSE(read_end(bad));
    CHECK_FALSE(read_opened(bad));
  }
  CHECK(read_signal("signal 1") == 1);
  CHECK(read_signal("signal 64") == 64);
  for (const char* bad : {"signal 0", "signal 65", "signal x", "signal ", "sig", "signal 2x"}) {
    CHECK_FALSE(read_signal(bad));
  }
  CHECK_FALSE(read_opened(R"({"opened": 1e300})"));
  CHECK(read_opened(R"({"opened": 99999999999})") == 2'147'483'647);
}

TEST_CASE("17.3: messages are found among a worker's bytes, in any pieces", "[hosts]") {
  const std::string bytes = "one\n\001abc first\ntw\001abx o\n\001abc second\n\001ab";
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    INFO(size);
    CHECK(parted(bytes, size) == "one\n<first>tw\001abx o\n<second>\001ab");
  }
}

TEST_CASE("17.3: what begins as a message and never ends is text", "[hosts]") {
  std::string heard;
  MarkedText text(message_mark("abc"));
  const MarkedText::Into into{[&](std::string_view part) { heard += part; },
                              [](std::string_view) { FAIL("no message"); }};
  std::string bytes = message_mark("abc");
  bytes.resize(MarkedText::message_bytes_max, 'x');
  text.add(bytes, into);
  CHECK(heard.empty());
  text.add("x", into);
  CHECK(heard == bytes + "x");
}

TEST_CASE("17.3: a message is one however much text comes with it", "[hosts]") {
  const std::string rest(MarkedText::message_bytes_max, 'x');
  CHECK(parted("\001abc first\n" + rest, 2 * rest.size()) == "<first>" + rest);
}

TEST_CASE("17.3: nodes meet where ssh has proved that node 0 is", "[hosts]") {
  CHECK(endpoint({here("localhost"), here("127.0.0.1")}) == "127.0.0.1");
  CHECK(endpoint({there("alias", "10.0.0.9 5 10.0.0.1 22"),
                  there("b", "10.0.0.9 5 10.0.0.2 22")}) == "10.0.0.1");
  // This machine, as the others see it come.
  CHECK(endpoint({here("me"), there("b", "10.0.0.9 5 10.0.0.2 22")}) == "10.0.0.9");
  CHECK(contains(endpoint({here("me"), there("b", "10.7.7.7 5 10.0.0.2 22")}), "--master-addr"));
  CHECK(contains(endpoint({here("me"), there("b", "")}), "--master-addr"));
  CHECK(contains(endpoint({here("me"), there("b", "10.0.0.9 5 10.0.0.2")}), "--master-addr"));
  // One that comes through a tunnel tells nothing to those that do not.
  const HostFacts direct = there("b", "10.0.0.9 5 10.0.0.2 22");
  const HostFacts tunnelled = there("c", "127.0.0.1 5 127.0.0.1 22");
  CHECK(endpoint({here("me"), direct, tunnelled}) == "10.0.0.9");
  CHECK(endpoint({here("me"), tunnelled, direct}) == "10.0.0.9");
  CHECK(endpoint({tunnelled, here("me")}) == "127.0.0.1");
  // An address that means another link elsewhere, though it is ours.
  CHECK(contains(
      choose_endpoint({here("me"), there("b", "fe80::9%eth0 5 fe80::2%eth0 22")}, {"fe80::9%eth0"})
          .problem,
      "--master-addr"));
  CHECK(endpoint({here("me"), direct, there("d", "192.168.1.9 5 192.168.1.2 22")}) == "10.0.0.9");
  // Tunnels: each host is reached by a port of ours, and knows itself by its name alone.
  CHECK(endpoint({there("a", "127.0.0.1 5 127.0.0.1 22"), there("b", "10.0.0.9 5 10.0.0.2 22")}) ==
        "a");
  CHECK(endpoint({there("a", "127.0.0.1 5 127.0.0.1 22"),
                  there("b", "127.0.0.1 6 127.0.0.1 22")}) == "127.0.0.1");
  CHECK(endpoint({there("a", "fe80::1%eth0 5 fe80::2%eth0 22")}) == "a");
  CHECK(endpoint({there("a", "10.0.0.9 5 fe80::2 22")}) == "a");
  CHECK(endpoint({there("a", "nonsense")}) == "a");
  HostFacts data = there("a", "10.0.0.9 5 10.0.0.1 22");
  data.addresses = {"10.9.0.1"};
  CHECK(endpoint({data}) == "10.9.0.1");
}
