// One request, one answer, the end of the connection: how the launcher's own loop serves whoever
// asks about its job, at a Unix socket or a port. Requests have a size, connections a number, a
// time and a pace, so that nobody who asks can hold the loop, or all of its descriptors.
#pragma once

#include <asio/buffers_iterator.hpp>
#include <asio/io_context.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace ddprun::launcher {

struct AnswerLimits {
  std::string request_end;        // The bytes that a request ends with.
  std::size_t request_bytes = 0;  // The most.
  int at_once = 0;                // Then the oldest that has not asked yet gives way.
  std::chrono::seconds time{0};   // For a request, its answer, and its reading.
};

// To be held by a shared_ptr: a connection keeps it until its answer is sent.
template <class Protocol>
class AnswerServer : public std::enable_shared_from_this<AnswerServer<Protocol>> {
 public:
  using Socket = typename Protocol::socket;
  using Reply = std::function<void(std::string answer)>;
  // `request` with its end, which came over `socket`. The reply may be given later, in the loop's
  // thread, and also when nobody waits for it any more.
  using Answer = std::function<void(const std::string& request, int socket, Reply reply)>;

  AnswerServer(asio::io_context& io, AnswerLimits limits, Answer answer)
      : acceptor(io), limits_(std::move(limits)), answer_(std::move(answer)), pause_(io) {}

  typename Protocol::acceptor acceptor;  // Listens before begin().

  void begin() {
    acceptor.async_accept(
        [self = this->shared_from_this()](const asio::error_code& error, Socket socket) {
          if (self->closed_) return;
          // Without a descriptor left (EMFILE) it would be called again at once, for ever.
          if (error) return self->begin_later(std::chrono::milliseconds(200));
          self->forget_who_has_spoken();
          if (self->served_ < self->limits_.at_once || self->oldest_gives_way()) {
            const auto asker = std::make_shared<Asker>(std::move(socket), self);
            self->silent_.push_back(asker);
            asker->serve();
          }
          self->begin_when_due();
        });
  }

  // Nobody is answered any more but those who are being answered.
  void close() {
    closed_ = true;
    asio::error_code ignored;
    acceptor.close(ignored);
    pause_.cancel();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds burst_time{50};

  struct Asker : std::enable_shared_from_this<Asker> {
    Asker(Socket connection, std::shared_ptr<AnswerServer> of)
        : owner(std::move(of)),
          socket(std::move(connection)),
          limit(socket.get_executor()),
          received(owner->limits_.request_bytes) {
      ++owner->served_;
    }
    ~Asker() { --owner->served_; }

    void serve() {
      limit.expires_after(owner->limits_.time);
      limit.async_wait([self = this->shared_from_this()](const asio::error_code& error) {
        asio::error_code ignored;
        if (!error) self->socket.close(ignored);
      });
      asio::async_read_until(
          socket, received, owner->limits_.request_end,
          [self = this->shared_from_this()](const asio::error_code& error, std::size_t bytes) {
            if (error || self->owner->closed_) return self->end();
            self->has_asked = true;
            const auto begin = asio::buffers_begin(self->received.data());
            self->owner->answer_({begin, begin + static_cast<std::ptrdiff_t>(bytes)},
                                 self->socket.native_handle(),
                                 [self](std::string answer) { self->reply(std::move(answer)); });
          });
    }

    void reply(std::string answer) {
      text = std::move(answer);
      asio::async_write(
          socket, asio::buffer(text),
          [self = this->shared_from_this()](const asio::error_code&, std::size_t) { self->end(); });
    }

    void end() {
      limit.cancel();
      asio::error_code ignored;
      socket.shutdown(Socket::shutdown_send, ignored);
      socket.close(ignored);
    }

    std::shared_ptr<AnswerServer> owner;
    Socket socket;
    asio::steady_timer limit;
    asio::streambuf received;
    std::string text;
    bool has_asked = false;
  };

  void forget_who_has_spoken() {
    std::erase_if(silent_, [](const auto& one) {
      const auto asker = one.lock();
      return !asker || asker->has_asked || !asker->socket.is_open();
    });
  }

  // Or connections that say nothing, a scanner's or somebody's who means harm, would keep those out
  // who ask. False: all are being answered.
  bool oldest_gives_way() {
    if (silent_.empty()) return false;
    silent_.front().lock()->end();
    silent_.pop_front();
    return true;
  }

  // Who asks thousands of times a second is served at the pace that others leave him: the loop has
  // heartbeats to send, and its core may be a worker's.
  void begin_when_due() {
    const auto now = Clock::now();
    if (now >= burst_ends_) {
      burst_ends_ = now + burst_time;
      taken_ = 0;
    }
    if (++taken_ < limits_.at_once) return begin();
    begin_later(burst_ends_ - now);
  }

  void begin_later(Clock::duration delay) {
    pause_.expires_after(delay);
    pause_.async_wait([self = this->shared_from_this()](const asio::error_code& error) {
      if (!error && !self->closed_) self->begin();
    });
  }

  AnswerLimits limits_;
  Answer answer_;
  asio::steady_timer pause_;
  int served_ = 0;
  Clock::time_point burst_ends_;
  int taken_ = 0;  // Connections in this burst, of which there are `at_once` at most.
  std::deque<std::weak_ptr<Asker>> silent_;  // In the order in which they came.
  bool closed_ = false;
};

}  // namespace ddprun::launcher
