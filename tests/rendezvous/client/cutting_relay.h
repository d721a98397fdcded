// A relay between clients and a store that breaks its first connection after a chosen number of
// bytes, and passes all later ones on: for tests of what a client does then.
#pragma once

#include <asio.hpp>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

namespace ddprun::rendezvous::testing {

class CuttingRelay {
 public:
  // `to_store`, `to_client`: so many bytes are passed on in that direction before the cut.
  CuttingRelay(std::uint16_t store_port, std::size_t to_store, std::size_t to_client)
      : store_(asio::ip::address_v4::loopback(), store_port),
        acceptor_(io_, {asio::ip::address_v4::loopback(), 0}),
        left_{to_store, to_client} {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~CuttingRelay() {
    io_.stop();
    thread_.join();
  }
  CuttingRelay(const CuttingRelay&) = delete;
  CuttingRelay& operator=(const CuttingRelay&) = delete;

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  bool has_cut() const { return has_cut_; }

 private:
  using Socket = asio::ip::tcp::socket;
  struct Pair {
    explicit Pair(Socket from) : client(std::move(from)), store(client.get_executor()) {}
    Socket client, store;
    bool doomed = false;
    void close() {
      asio::error_code ignored;
      client.close(ignored);
      store.close(ignored);
    }
  };
  struct Buffer {
    char bytes[4096];
  };

  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, Socket socket) {
      if (error) return;
      auto pair = std::make_shared<Pair>(std::move(socket));
      pair->doomed = !had_first_;
      had_first_ = true;
      asio::error_code failed;
      pair->store.connect(store_, failed);
      pair->client.set_option(asio::ip::tcp::no_delay(true), failed);
      pair->store.set_option(asio::ip::tcp::no_delay(true), failed);
      pass(pair, pair->client, pair->store, 0);
      pass(pair, pair->store, pair->client, 1);
      accept();
    });
  }

  void pass(const std::shared_ptr<Pair>& pair, Socket& from, Socket& to, int direction) {
    auto buffer = std::make_shared<Buffer>();
    from.async_read_some(asio::buffer(buffer->bytes),
                         [this, pair, &from, &to, direction, buffer](const asio::error_code& error,
                                                                     std::size_t size) {
                           if (error) return pair->close();
                           const bool cut = pair->doomed && size >= left_[direction];
                           if (cut) size = left_[direction];
                           if (pair->doomed) left_[direction] -= size;
                           asio::error_code failed;
                           asio::write(to, asio::buffer(buffer->bytes, size), failed);
                           if (cut) {
                             has_cut_ = true;
                             pair->close();
                           }
                           if (!cut && !failed) pass(pair, from, to, direction);
                         });
  }

  asio::io_context io_;
  asio::ip::tcp::endpoint store_;
  asio::ip::tcp::acceptor acceptor_;
  std::size_t left_[2];
  bool had_first_ = false;
  std::atomic<bool> has_cut_ = false;
  std::thread thread_;
};

}  // namespace ddprun::rendezvous::testing
