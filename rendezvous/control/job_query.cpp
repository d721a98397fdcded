// What may come in place of the answer is told apart here, because people read it: another secret,
// another job, a coordinator that is elsewhere by now, or something that is no ddprun.
#include "rendezvous/control/job_query.h"

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <utility>

#include "rendezvous/control/control_question.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t query_answer_bytes_max = 8u << 20;  // As it comes, sealed and quoted.

// Whether that was the last of the answer.
bool take(const ControlMessage& message, int number, std::string& text, QueryAnswer& answer) {
  if (const auto* refused = std::get_if<Refused>(&message)) {
    answer.refused = *refused;
    return true;
  }
  if (const auto* moved = std::get_if<Moved>(&message)) {
    answer.moved = moved->coordinator;
    return true;
  }
  const auto* told = std::get_if<Told>(&message);
  if (told == nullptr || told->number != number) return false;
  text += told->text;
  if (told->more) return false;
  answer.text = std::move(text);
  return true;
}

void note_failure(const QuestionEnd& end, QueryAnswer& answer) {
  if (end.tls == TlsFailure::PlainPeer) {
    answer.refused = Refused{.reason = "the job runs without a secret: give --auth none"};
  } else if (end.tls == TlsFailure::WrongKey) {
    answer.refused = Refused{.reason = "this secret, or this job's id, is another one"};
  } else {
    answer.why = end.why;
    answer.nobody_listens = end.nobody_listens;
  }
}

}  // namespace

void query_coordinator(asio::io_context& io, const std::string& address, std::uint16_t port,
                       const Query& query, std::shared_ptr<const TlsContext> tls,
                       std::chrono::milliseconds limit,
                       std::function<void(const QueryAnswer& answer)> done) {
  asio::error_code error;
  const auto numeric = asio::ip::make_address(address, error);
  if (error) {
    return asio::post(io, [done = std::move(done)] { done({.why = "no address"}); });
  }
  struct Answer {
    QueryAnswer answer;
    std::string text;
  };
  const auto so_far = std::make_shared<Answer>();
  put_question(
      io, {numeric, port},
      {.ask = query,
       .tls = std::move(tls),
       .limit = limit,
       .answer_bytes_max = query_answer_bytes_max},
      [so_far, number = query.number](const ControlMessage& message) {
        return take(message, number, so_far->text, so_far->answer);
      },
      [so_far, done = std::move(done)](const QuestionEnd& end) {
        if (!end.why.empty()) note_failure(end, so_far->answer);
        done(so_far->answer);
      });
}

}  // namespace ddprun::rendezvous
