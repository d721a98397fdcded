// Lists of hosts as people write them, and what is wrong with those that are none.
#include "launcher/hosts/host_list.h"

#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;

namespace {

std::string names(const HostList& list) {
  std::string text;
  for (const Host& host : list.hosts) {
    text += (text.empty() ? "" : " ") + host.login;
    if (host.workers) text += "=" + std::to_string(*host.workers);
  }
  return text;
}

std::string hosts(const std::string& text) {
  try {
    return names(parse_host_list(text));
  } catch (const HostListError& error) {
    return std::string("error: ") + error.what();
  }
}

std::string file(const std::string& text) {
  try {
    return names(parse_hostfile(text, "hosts.txt"));
  } catch (const HostListError& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace

TEST_CASE("17.3: -H names hosts, with users, workers, ranges and addresses", "[hosts]") {
  CHECK(hosts("a:8,b:8") == "a=8 b=8");
  CHECK(hosts("a,me@b:2") == "a me@b=2");
  CHECK(parse_host_list("me@b").hosts[0].name == "b");
  // ssh takes the last "@" as well.
  CHECK(hosts("me@corp.example@gpu1:2,me@x@[::1]") == "me@corp.example@gpu1=2 me@x@::1");
  CHECK(parse_host_list("me@corp.example@gpu1").hosts[0].name == "gpu1");
  CHECK(hosts("gpu[08-10]:4") == "gpu08=4 gpu09=4 gpu10=4");
  // As scontrol show hostnames: each width kept, the first bracket outermost.
  CHECK(hosts("gpu[001-003,7,09-11]") == "gpu001 gpu002 gpu003 gpu7 gpu09 gpu10 gpu11");
  CHECK(hosts("rack[0-1]n[00-01]") == "rack0n00 rack0n01 rack1n00 rack1n01");
  CHECK(hosts("a[1-2]-ib,b3") == "a1-ib a2-ib b3");
  CHECK(hosts("[01-02].rack:1") == "01.rack=1 02.rack=1");
  CHECK(hosts("[fd00::1]:8,fd00::2,me@[::1]") == "fd00::1=8 fd00::2 me@::1");
}

TEST_CASE("17.3: a host that is named again gets the workers of both", "[hosts]") {
  CHECK(hosts("a,b,a") == "a=2 b");
  CHECK(hosts("a:2,a:3") == "a=5");
  CHECK(file("n1\nn1\nn2\nn2\n") == "n1=2 n2=2");  // PBS's node file.
}

TEST_CASE("17.3: what is no list of hosts is refused with its place", "[hosts]") {
  // ssh would take the second for an option of its own.
  for (const char* bad : {"",
                          "-oProxyCommand=x",
                          "a,,b",
                          "a,",
                          "a:0",
                          "a:x",
                          "a:-1",
                          "a b",
                          "a;b",
                          "@a@b",
                          "a@b@",
                          "@a",
                          "$(x)@a",
                          "a b@c",
                          "-o@a",
                          "[::1]8",
                          "[::1]x8",
                          "gpu[1-",
                          "gpu[1",
                          "gpu[1,]",
                          "gpu[-1]",
                          "gpu[1--1]",
                          "gpu[]",
                          "gpu[3-1]",
                          "gpu[x]",
                          "a[1-99999999]",
                          "a[0-999][0-999]",
                          "a:99999999999999999999",
                          "$(x)",
                          "a'b",
                          "a\nb"}) {
    INFO(bad);
    CHECK(hosts(bad).rfind("error: ", 0) == 0);
  }
  CHECK(contains(hosts("a:x"), "expected a number of workers"));
  CHECK(contains(hosts("a\x7f\n\x1f z"), ": \"a??? z\": expected a host"));
  CHECK(contains(hosts(std::string(80, '*')), "\"" + std::string(80, '*') + "\":"));
  CHECK(contains(hosts(std::string(81, '*')), "\"" + std::string(80, '*') + "...\":"));
  CHECK(contains(file("a\n\nb slots=none\n"), "hosts.txt:3: "));
  CHECK(contains(file("a cpus=3\n"), "expected slots=N"));
  CHECK(contains(file("# nobody\n"), "hosts.txt: no host is named"));
}

TEST_CASE("17.3: a list of hosts has limits", "[hosts]") {
  CHECK(hosts("a:4096") == "a=4096");
  CHECK(hosts("a:4095,a") == "a=4096");
  for (const char* bad : {"a:4097", "a:4096,a"}) CHECK(contains(hosts(bad), "4096"));
  for (const char* most : {"a[1-65536]", "a[0-255]n[1-256]", "a[1-65535],b"}) {
    INFO(most);
    CHECK(parse_host_list(most).hosts.size() == hosts_max);
  }
  for (const char* more :
       {"a[1-65537]", "a[1,2-65537]", "a[0-256]n[1-256]", "a[1-65536],b", "a[1-65536][1-65536]"}) {
    INFO(more);
    CHECK(contains(hosts(more), "more than 65536 hosts"));
  }
  CHECK(hosts("a[000000000001]") == "a000000000001");
  CHECK(contains(hosts("a[0000000000001]"), "expected numbers and ranges"));
  CHECK(hosts(std::string(255, 'a')) == std::string(255, 'a'));
  CHECK(contains(hosts(std::string(256, 'a')), "expected a host"));
}

TEST_CASE("17.3: a hostfile has a host on a line, with slots and comments", "[hosts]") {
  CHECK(
      file("# two racks\na slots=8\n\nb:4   # the old one\nme@c\r\ngpu[1-2] slots=2 max_slots=4") ==
      "a=8 b=4 me@c gpu1=2 gpu2=2");
  CHECK(contains(file("a:2 slots=2"), "has a number already"));
  CHECK(file("a slots = 8\nb\tslots\t=\t4 max_slots= 8\n") == "a=8 b=4");
  CHECK(file("[::1]:2\n[::2]\n") == "::1=2 ::2");  // No JSON.
  for (const char* bad : {"a slots=1 max_slots=x", "a = 8", "= 8", "a slots = ", "a slots = = 8"}) {
    INFO(bad);
    CHECK(file(bad).rfind("error: ", 0) == 0);
  }
}

TEST_CASE("17.3: mlx.launch's JSON separates the login from the data's addresses", "[hosts]") {
  const HostList list = parse_hostfile(
      R"([{"ssh": "a", "ips": ["10.0.0.1", "10.1.0.1"], "rdma": [null]}, {"ssh": "me@b"}])", "f");
  CHECK(names(list) == "a me@b");
  CHECK(list.hosts[0].addresses == std::vector<std::string>{"10.0.0.1", "10.1.0.1"});
  const HostList whole = parse_hostfile(
      R"({"backend": "ring", "envs": ["A=1"], "hosts": [{"ssh": "a", "slots": 4}]})", "f");
  CHECK(names(whole) == "a=4");
  CHECK(whole.variables == std::vector<std::string>{"A=1"});
  CHECK(contains(file("[{\"ssh\": 3}]"), "hosts.txt: expected {\"ssh\""));
  CHECK(contains(file("{\"hosts\": [}"), "is none"));
  CHECK(contains(file("[{\"ssh\": \"a[1-2]\", \"ips\": [\"10.0.0.1\"]}]"), "not a range"));
  CHECK(contains(file("[{\"ssh\": \"-oX\"}]"), "expected a host"));
  CHECK(file(R"([{"ssh": "a[1-2]", "ips": null}])") == "a1 a2");
  CHECK(contains(file(R"([{"ssh": "a", "ips": ["-oX"]}])"), "\"-oX\": expected a host"));
  for (const char* ips : {R"("10.0.0.1")", "[3]"}) {
    CHECK(contains(file(std::string(R"([{"ssh": "a", "ips": )") + ips + "}]"), "a list of texts"));
  }
  CHECK(contains(file("{\"hosts\": [3]}"), "expected {\"ssh\""));
  CHECK(contains(file("[]"), "hosts.txt: no host is named"));
  CHECK(contains(file("{}"), "there is no list \"hosts\""));
  CHECK(contains(file(R"({"hosts": 3})"), "\"hosts\": expected a list"));
  for (const char* variable : {"A", "=A"}) {
    CHECK(contains(file(std::string(R"({"envs": [")") + variable + R"("], "hosts": []})"),
                   "in \"envs\": expected NAME=VALUE"));
  }
}

TEST_CASE("17.3: the mark with which Windows' editors begin a file is no part of a host",
          "[hosts]") {
  CHECK(file("\xEF\xBB\xBF"
             "a slots=8\r\nb\r\n") == "a=8 b");
  CHECK(file("\xEF\xBB\xBF[{\"ssh\": \"a\"}]") == "a");
  CHECK(contains(file("\xEF\xBB\xBF"), "no host is named"));
}
