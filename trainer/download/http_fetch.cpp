// Downloads through libcurl; what has come is in the file, whatever happens next.
#include "trainer/download/http_fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#if DDPRUN_HAVE_CURL
#include "command_line/write_all.h"
#include "rendezvous/http/curl_library.h"
#include "worker/unique_fd.h"
#endif

namespace ddprun::trainer {

#if DDPRUN_HAVE_CURL
namespace {

using rendezvous::curl;

constexpr long connect_timeout_s = 30;
constexpr long silence_max_s = 60;
constexpr long redirects_max = 5;
constexpr long range_not_satisfiable = 416;

class Output {
 public:
  explicit Output(const std::filesystem::path& path)
      : name_(path.string()),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (!fd_) fail();
  }

  std::int64_t bytes() const {
    struct stat status {};
    return ::fstat(fd_.get(), &status) == 0 ? status.st_size : 0;
  }
  void clear() {
    if (::ftruncate(fd_.get(), 0) != 0) fail();
  }
  // Fewer than `count` tell libcurl to stop; error() then says why.
  std::size_t append(const char* data, std::size_t count) {
    const command_line::Written done = command_line::write_all(fd_.get(), {data, count});
    if (done.error != 0) error_ = done.error;
    return done.bytes;
  }
  void check() const {
    if (error_ == 0) return;
    errno = error_;
    fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw WriteError(fmt::format("cannot write {}: {}", name_, std::strerror(errno)));
  }

  std::string name_;
  worker::UniqueFd fd_;
  int error_ = 0;
};

class Transfer {
 public:
  Transfer(const std::string& address, Output& output, const FetchProgress& progress)
      : address_(address), output_(output), progress_(progress), handle_(curl().init()) {
    if (handle_ == nullptr) throw FetchError("libcurl cannot begin a transfer: no memory");
    set(CURLOPT_URL, address.c_str());
    set(CURLOPT_USERAGENT, "ddprun");
    set(CURLOPT_NOSIGNAL, 1L);  // Its alarm() would be a signal in a thread of somebody else.
    set(CURLOPT_FAILONERROR, 1L);
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, redirects_max);
    // By number: the option that takes names is younger than Debian 11's libcurl.
    const long http = CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl().set(handle_, static_cast<CURLoption>(181), http);  // CURLOPT_PROTOCOLS
    curl().set(handle_, static_cast<CURLoption>(182), http);  // CURLOPT_REDIR_PROTOCOLS
    set(CURLOPT_CONNECTTIMEOUT, connect_timeout_s);
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, silence_max_s);
    set(CURLOPT_ERRORBUFFER, reason_);
    set(CURLOPT_WRITEDATA, this);
    const curl_write_callback write = [](char* data, std::size_t size, std::size_t count,
                                         void* self) {
      return static_cast<Transfer*>(self)->output_.append(data, size * count);
    };
    set(CURLOPT_WRITEFUNCTION, write);
    const curl_write_callback header = [](char* line, std::size_t size, std::size_t count,
                                          void* self) {
      static_cast<Transfer*>(self)->note_header({line, size * count});
      return size * count;
    };
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_HEADERFUNCTION, header);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFODATA, this);
    const curl_xferinfo_callback seen = [](void* self, curl_off_t total, curl_off_t done,
                                           curl_off_t, curl_off_t) {
      auto& transfer = *static_cast<Transfer*>(self);
      if (total > 0) transfer.progress_(transfer.begin_ + done, transfer.begin_ + total);
      return 0;
    };
    set(CURLOPT_XFERINFOFUNCTION, seen);
  }
  ~Transfer() { curl().clean_up(handle_); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void run() {
    begin_ = output_.bytes();
    set(CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(begin_));
    CURLcode code = curl().perform(handle_);
    if (begin_ > 0 && code == CURLE_RANGE_ERROR) {  // All of it would come: so from the start.
      check_worth();
      output_.clear();
      begin_ = 0;
      set(CURLOPT_RESUME_FROM_LARGE, curl_off_t{0});
      code = curl().perform(handle_);
    }
    output_.check();
    if (code == CURLE_OK || (begin_ > 0 && status() == range_not_satisfiable)) return;
    throw FetchError(fmt::format("cannot download {}: {}", address_,
                                 reason_[0] != '\0' ? reason_ : curl().words(code)));
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    curl().set(handle_, option, value);
  }
  // libcurl forgets the length of an answer that it refuses (8.14; 7.88 does not).
  void note_header(std::string_view line) {
    constexpr std::string_view name = "content-length:";
    if (line.starts_with("HTTP/")) told_bytes_ = -1;  // Of the next answer, after a redirection.
    if (line.size() < name.size() || ::strncasecmp(line.data(), name.data(), name.size()) != 0) {
      return;
    }
    line.remove_prefix(name.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    std::int64_t bytes = -1;
    std::from_chars(line.data(), line.data() + line.size(), bytes);
    told_bytes_ = bytes;
  }
  // A page to log in at, or of a mirror that is broken, must not take the place of what has come.
  void check_worth() const {
    const std::int64_t bytes = told_bytes_;
    if (bytes >= begin_) return;
    const std::string begin = fmt::format("cannot go on with {}: the server ", address_);
    if (bytes < 0) {
      throw FetchError(fmt::format(
          "{}does not say how many bytes it sends from the start, and {} are here: remove them to "
          "begin anew",
          begin, begin_));
    }
    throw FetchError(fmt::format(
        "{}sends {} bytes from the start, fewer than the {} that are here: it may be a page in its "
        "place",
        begin, bytes, begin_));
  }
  long status() const {
    long code = 0;
    curl().info(handle_, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }

  const std::string& address_;
  Output& output_;
  const FetchProgress& progress_;
  CURL* handle_;
  std::int64_t begin_ = 0;
  std::int64_t told_bytes_ = -1;  // How many the server says that it sends; -1: it does not.
  char reason_[CURL_ERROR_SIZE] = {};
};

}  // namespace

void fetch(const std::string& address, const std::filesystem::path& file,
           const FetchProgress& progress) {
  try {
    Output output(file);
    Transfer(address, output, progress).run();
  } catch (const rendezvous::CurlMissing& missing) {
    throw FetchError(missing.what());
  }
}

#else

void fetch(const std::string& address, const std::filesystem::path&, const FetchProgress&) {
  throw FetchError(
      fmt::format("cannot download {}: this `train` was built without libcurl "
                  "(Debian: libcurl4-openssl-dev)",
                  address));
}

#endif

}  // namespace ddprun::trainer
