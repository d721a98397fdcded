// A store server as a program, for tests and benchmarks: prints its port, then answers each line
// "attempt" on standard input with "ok" once a new attempt has begun. Ends with its input.
#include <unistd.h>

#include <asio.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include "rendezvous/server.h"

int main() {
  using namespace ddprun::rendezvous;
  asio::io_context io(1);
  Server server(io, {}, [](asio::ip::tcp::socket, const std::string&) {});
  std::printf("%d\n", server.port());
  std::fflush(stdout);

  asio::posix::stream_descriptor input(io, ::dup(STDIN_FILENO));
  std::string lines;
  std::function<void()> read_line = [&] {
    asio::async_read_until(input, asio::dynamic_buffer(lines), '\n',
                           [&](const asio::error_code& error, std::size_t size) {
                             if (error) return server.close();
                             if (lines.substr(0, size) == "attempt\n") server.start_attempt();
                             lines.erase(0, size);
                             std::puts("ok");
                             std::fflush(stdout);
                             read_line();
                           });
  };
  read_line();
  io.run();
}
