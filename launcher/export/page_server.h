// A few pages over HTTP, for a scraper or a person, from the launcher's own loop.
//
// Of the HTTP libraries that Debian has, those for servers bring threads of their own or tens of
// thousands of lines; what one answer needs (http_reply.h) is less.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "launcher/export/http_reply.h"
#include "launcher/status/answer_server.h"

namespace ddprun::launcher {

// Who may read at a loopback address, which is every local user's; at others everybody may.
enum class PageReaders { All, OwnUser };  // Root is as good as the own user.

class PageServer {
 public:
  // Listens at a numeric `host`; port 0 is any free one. Throws std::runtime_error with what to do:
  // `option` is who asked for it. `lookup` is called in the loop's thread.
  // `before` is called before each answer, and calls back when what `lookup` shows is of now.
  PageServer(asio::io_context& io, const std::string& host, std::uint16_t port,
             const std::string& option, PageReaders readers, PageLookup lookup,
             std::function<void(std::function<void()> done)> before);
  ~PageServer();  // Who is being answered gets the rest while the loop runs.
  PageServer(const PageServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:9400"

 private:
  std::shared_ptr<AnswerServer<asio::ip::tcp>> server_;
};

}  // namespace ddprun::launcher
