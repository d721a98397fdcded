// One request over HTTP or HTTPS with a body each way, bounded in time and size. Blocks.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::rendezvous {

// No answer came; the message has the URL and the reason.
class HttpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct HttpRequest {
  std::string url;
  std::string body;
  std::vector<std::string> headers = {};  // "Name: value", besides libcurl's own.
  std::chrono::milliseconds limit{5'000};
  // PEM files for https; "" = the system's authorities, and no certificate of our own.
  std::string authority_file, certificate_file, key_file;
};

struct HttpAnswer {
  long status = 0;  // Whatever it is.
  std::string body;
  std::string local_address;  // Numeric: from where the server was reached.
};

HttpAnswer http_post(const HttpRequest& request);

}  // namespace ddprun::rendezvous
