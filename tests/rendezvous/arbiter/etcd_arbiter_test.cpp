// The arbiter in a real etcd, and at servers that are none.
#include "rendezvous/arbiter/etcd_arbiter.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/canned_server.h"
#include "tests/testing/catch.h"
#include "tests/testing/etcd_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using namespace ddprun::testing;

namespace {

const RoundName third{0, 3};

EtcdArbiter arbiter_at(EtcdServers servers,
                       std::chrono::milliseconds limit = patience(std::chrono::seconds(4))) {
  const std::string name = "--tie-breaker " + servers.text();
  return {std::move(servers), "run", name, limit};
}

Claim etcd_claim(const std::string& id, bool kept = false) {
  return {.holder = {.node_id = id, .host = "host-" + id, .address = "10.0.0.1", .port = 29'500},
          .term = 1,
          .kept = kept};
}

ArbiterTask add(const std::string& id, int at, bool kept = false) {
  return {.round = third, .add = etcd_claim(id, kept), .at = at, .beat = 5};
}

#define SKIP_WITHOUT_ETCD() \
  if (const auto why = EtcdServer::unavailable(); !why.empty()) DDPRUN_SKIP(why)

}  // namespace

TEST_CASE("16.1: in etcd a claim's number is given away once, until the job is forgotten",
          "[rendezvous][arbiter][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  // One that is not there comes first: the other is asked instead.
  EtcdArbiter a = arbiter_at({.urls = {"http://127.0.0.1:1", server.url()}});
  EtcdArbiter b = arbiter_at({.urls = {server.url()}});
  CHECK_FALSE(b.knows("job"));
  const std::string unknown =
      message_of<ArbiterError>([&] { b.carry_out("job", "b", add("b", 0)); });
  CHECK(contains(unknown, "there is no key /ddprun/run/job/job"));
  a.found("job");
  CHECK(b.knows("job"));

  Claims seen = a.carry_out("job", "a", add("a", 0));
  CHECK(seen.count == 1);
  CHECK(seen.last.holder == etcd_claim("a").holder);
  CHECK(seen.beat == 5);
  seen = b.carry_out("job", "b", add("b", 0));
  CHECK(seen.count == 1);
  CHECK(seen.last.holder.node_id == "a");
  for (int number = 1; number < 12; ++number) {  // 10 comes after 9.
    seen = b.carry_out("job", "b", add(number % 2 ? "b" : "a", number, number == 11));
    CHECK(seen.count == number + 1);
  }
  CHECK(seen.last.holder.node_id == "b");
  CHECK(seen.last.kept);
  CHECK(b.carry_out("job", "b", {.round = {1, 3}, .add = {}, .at = 0, .beat = {}}).count == 0);

  a.forget("job");
  CHECK_FALSE(b.knows("job"));
  CHECK(contains(message_of<ArbiterError>([&] { b.carry_out("job", "b", add("b", 12)); }),
                 "the job has ended"));
}

TEST_CASE("16.1: of many who claim in etcd at once one has it", "[rendezvous][arbiter][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  arbiter_at({.urls = {server.url()}}).found("job");
  std::vector<std::string> winners(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < winners.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::string id(1, static_cast<char>('a' + i));
      EtcdArbiter arbiter = arbiter_at({.urls = {server.url()}});
      winners[i] = arbiter.carry_out("job", id, add(id, 0)).last.holder.node_id;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(winners[0].empty());
  for (const std::string& winner : winners) CHECK(winner == winners[0]);
}

TEST_CASE("16.1: claims outlive etcd's restart, and while it is away that is said",
          "[rendezvous][arbiter][etcd]") {
  SKIP_WITHOUT_ETCD();
  EtcdServer server;
  EtcdArbiter a = arbiter_at({.urls = {server.url()}});
  a.found("job");
  a.carry_out("job", "a", add("a", 0, true));
  server.kill();
  const std::string why = message_of<ArbiterError>([&] { a.knows("job"); });
  CHECK(contains(why, "--tie-breaker " + server.url() + ": "));
  CHECK(contains(why, "is an etcd of version 3.4 or later there"));
  server.start();
  const Claims seen = a.carry_out("job", "b", add("b", 0));
  CHECK(seen.last.holder.node_id == "a");
  CHECK(seen.last.kept);
}

TEST_CASE("16.1: etcd is asked over https, and only one whose authority is the given one",
          "[rendezvous][arbiter][etcd]") {
  SKIP_WITHOUT_ETCD();
  const TemporaryFolder folder;
  const std::string key = folder / "key", certificate = folder / "certificate";
  const auto made =
      run({"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
           "-nodes", "-days", "2", "-subj", "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1",
           "-keyout", key, "-out", certificate},
          patience(std::chrono::seconds(20)));
  if (made.status != 0) DDPRUN_SKIP("openssl makes no certificate: " + made.output);
  EtcdServer server(certificate, key);
  EtcdArbiter sealed = arbiter_at({.urls = {server.url()}, .authority_file = certificate});
  sealed.found("job");
  CHECK(sealed.knows("job"));
  EtcdArbiter stranger = arbiter_at({.urls = {server.url()}});
  CHECK(contains(message_of<ArbiterError>([&] { stranger.knows("job"); }), "certificate"));
}

TEST_CASE("16.1: a server that is no etcd, or says nothing, is named within the limit",
          "[rendezvous][arbiter][etcd]") {
  const auto told_by = [](const std::string& answer, std::chrono::milliseconds limit) {
    CannedServer server(answer);
    EtcdArbiter arbiter = arbiter_at({.urls = {server.url()}}, limit);
    const std::string why = message_of<ArbiterError>([&] { arbiter.knows("job"); });
    CHECK(contains(why, "--tie-breaker " + server.url()));
    return why;
  };
  const auto long_enough = patience(std::chrono::seconds(10));
  const auto with_length = [](const std::string& status, const std::string& body) {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\nConnection: close\r\n\r\n" + body;
  };
  CHECK(contains(told_by(with_length("503 Busy", "go away\x1b[2J"), long_enough),
                 "answers 503 go away^[[2J"));
  CHECK(contains(told_by(with_length("404 Not Found", "<html>"), long_enough), "answers 404"));
  CHECK(contains(told_by(with_length("200 OK", "<html>"), long_enough), "is no etcd: it answers"));
  CHECK(contains(told_by(with_length("200 OK", R"({"header":{},"responses":7})"), long_enough),
                 "is no etcd: it answers"));
  CHECK_FALSE(told_by("SSH-2.0-OpenSSH_9.2\r\n\r\n", long_enough).empty());
  // Redirects lead nowhere, least of all to a file.
  CHECK(contains(told_by("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n"
                         "Content-Length: 0\r\nConnection: close\r\n\r\n",
                         long_enough),
                 "answers 302"));
  CHECK(contains(told_by("", std::chrono::milliseconds(200)), "timed out"));
}
