// What is written for etcd's gateway, and what is taken as its answer.
#include "rendezvous/arbiter/etcd_text.h"

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;

TEST_CASE("16.1: base64 is RFC 4648's, and comes back", "[rendezvous][arbiter][etcd]") {
  // Section 10 of it.
  CHECK(to_base64("") == "");
  CHECK(to_base64("f") == "Zg==");
  CHECK(to_base64("fo") == "Zm8=");
  CHECK(to_base64("foobar") == "Zm9vYmFy");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (std::size_t size = 0; size <= all.size(); ++size) {
    CHECK(from_base64(to_base64(all.substr(0, size))) == all.substr(0, size));
  }
  for (const char* const bad : {"Zg", "Zg=", "Z===", "Zm9v!m9v", "Zg==Zg=="}) {
    CAPTURE(bad);
    CHECK_FALSE(from_base64(bad));
  }
}

TEST_CASE("16.1: a key is put where none is, or one of ours", "[rendezvous][arbiter][etcd]") {
  const auto body = nlohmann::json::parse(EtcdTransaction()
                                              .if_absent("/a")
                                              .if_value("/b", "1")
                                              .put("/a", "x", 7)
                                              .read_below("/c/")
                                              .body());
  CHECK(body["compare"][0] ==
        nlohmann::json{
            {"key", "L2E="}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}});
  CHECK(body["compare"][1]["target"] == "VALUE");
  CHECK(body["success"][0]["request_put"] ==
        nlohmann::json{{"key", "L2E="}, {"value", "eA=="}, {"lease", "7"}});
  // Up to "/c0", which is the first that does not begin with "/c/".
  CHECK(body["success"][1]["request_range"] ==
        nlohmann::json{{"key", to_base64("/c/")}, {"range_end", to_base64("/c0")}});
}

TEST_CASE("16.1: etcd's answers are read, and what is none is refused",
          "[rendezvous][arbiter][etcd]") {
  const auto read = parse_etcd_result(
      R"({"header":{"revision":"2"},"succeeded":true,"responses":[{"response_put":{}},)"
      R"({"response_range":{"kvs":[{"key":"L2E=","value":"MQ=="},{"key":"L2I="}]}}]})");
  REQUIRE(read);
  CHECK(read->held);
  CHECK(read->values == std::map<std::string, std::string>{{"/a", "1"}, {"/b", ""}});
  REQUIRE(parse_etcd_result(R"({"header":{}})"));
  CHECK_FALSE(parse_etcd_result(R"({"header":{}})")->held);
  for (const char* const bad :
       {"", "<html>", "[]", "{}", "null", R"({"error":"no","code":3})",
        R"({"header":{},"responses":5})", R"({"header":{},"responses":[5]})",
        R"({"header":{},"responses":[{"response_range":5}]})",
        R"({"header":{},"responses":[{"response_range":{"kvs":5}}]})",
        R"({"header":{},"responses":[{"response_range":{"kvs":[5]}}]})",
        R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":5}]}}]})",
        R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":"?"}]}}]})"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_etcd_result(bad));
  }
}

TEST_CASE("16.1: a lease has a number, and may be over", "[rendezvous][arbiter][etcd]") {
  CHECK(parse_etcd_grant(R"({"header":{},"ID":"7103480662978413574","TTL":"5"})") ==
        7103480662978413574);
  CHECK(parse_etcd_keep_alive(R"({"result":{"header":{},"ID":"77","TTL":"5"}})") == 5);
  CHECK(parse_etcd_keep_alive(R"({"result":{"header":{},"ID":"77"}})") == 0);
  for (const char* const bad :
       {"", "[]", "{}", R"({"ID":5})", R"({"ID":"5x"})", R"({"ID":""})",
        R"({"ID":"99999999999999999999"})", R"({"result":5})", R"({"result":{"TTL":"x"}})"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_etcd_grant(bad));
    CHECK_FALSE(parse_etcd_keep_alive(bad));
  }
}
