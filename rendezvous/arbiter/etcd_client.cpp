// The order in which servers are asked, and what is said when none of them helps.
#include "rendezvous/arbiter/etcd_client.h"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/control/visible_text.h"
#include "rendezvous/http/http_post.h"

namespace ddprun::rendezvous {
namespace {

using EtcdClock = std::chrono::steady_clock;

constexpr long http_ok = 200;
constexpr std::size_t excerpt_bytes_max = 200;  // Of an answer that is not understood.

std::string answer_excerpt(const std::string& body) {
  return visible_text(body.substr(0, excerpt_bytes_max), Lines::Escape);
}

}  // namespace

EtcdResult EtcdClient::run(const EtcdTransaction& transaction) {
  const std::string path = "/v3/kv/txn", body = call(path, transaction.body());
  auto result = parse_etcd_result(body);
  if (!result) not_understood(path, body);
  return std::move(*result);
}

std::int64_t EtcdClient::grant(std::chrono::seconds lasts) {
  const std::string path = "/v3/lease/grant", body = call(path, etcd_grant_body(lasts));
  const auto id = parse_etcd_grant(body);
  if (!id) not_understood(path, body);
  return *id;
}

bool EtcdClient::keep_alive(std::int64_t lease) {
  const std::string path = "/v3/lease/keepalive", body = call(path, etcd_lease_body(lease));
  const auto left = parse_etcd_keep_alive(body);
  if (!left) not_understood(path, body);
  return *left > 0;
}

void EtcdClient::revoke(std::int64_t lease) { call("/v3/lease/revoke", etcd_lease_body(lease)); }

std::string EtcdClient::post(const std::string& url, const std::string& body,
                             EtcdClock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - EtcdClock::now());
  HttpAnswer answer = http_post({.url = url,
                                 .body = body,
                                 .limit = std::max(std::chrono::milliseconds(1), left),
                                 .authority_file = servers_.authority_file,
                                 .certificate_file = servers_.certificate_file,
                                 .key_file = servers_.key_file});
  if (answer.status != http_ok) {
    throw HttpError(
        fmt::format("{} answers {} {}", url, answer.status, answer_excerpt(answer.body)));
  }
  local_address_ = answer.local_address;
  return std::move(answer.body);
}

// A server that does not answer must leave time for the others.
std::string EtcdClient::call(const std::string& path, const std::string& body) {
  const auto until = EtcdClock::now() + limit_;
  const std::size_t count = servers_.urls.size();
  std::string why;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (first_ + i) % count;
    const auto now = EtcdClock::now();
    try {
      std::string answer = post(servers_.urls[index] + path, body,
                                now + (until - now) / static_cast<int>(count - i));
      first_ = index;
      return answer;
    } catch (const HttpError& error) {
      why += (why.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  throw ArbiterError(fmt::format(
      "{}: {}; is an etcd of version 3.4 or later there, with its JSON gateway on (the default)?",
      name_, why));
}

void EtcdClient::not_understood(const std::string& path, const std::string& body) const {
  throw ArbiterError(fmt::format("{}: {}{} is no etcd: it answers {}", name_, servers_.urls[first_],
                                 path, answer_excerpt(body)));
}

}  // namespace ddprun::rendezvous
