// getaddrinfo() in a detached thread: it cannot be cancelled, takes as long as the name servers
// do, and nothing else may wait for it (Ctrl-C in particular).
#include "rendezvous/control/resolve.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/ip/address.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "rendezvous/blocked_signals.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::rendezvous {

// Shared by the thread and whoever waits for it; the last one frees it. Not in the anonymous
// namespace, because resolve()'s coroutine frame, which has it as a field, is not either.
struct Lookup {
  Lookup() : done_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!done_fd) throw std::system_error(errno, std::generic_category(), "eventfd");
  }

  std::string host;
  Resolved result;  // Written by the thread before it signals done_fd, read after.
  // Says the same in the language's own terms: that a descriptor's reader comes after its writer is
  // the kernel's doing, and of a duplicate ThreadSanitizer does not know it.
  std::atomic<bool> written = false;
  UniqueFd done_fd;
};

namespace {

Resolved look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  Resolved result;
  if (error != 0) {
    result.error = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return result;
  }
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(item->ai_addr, item->ai_addrlen, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    std::string address = text.data();
    auto& all = result.addresses;
    if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(std::move(address));
  }
  freeaddrinfo(list);
  if (result.addresses.empty()) result.error = "the name has no addresses";
  return result;
}

void start_thread(std::shared_ptr<Lookup> lookup) {
  const BlockedSignals blocked;
  std::thread([lookup = std::move(lookup)] {
    lookup->result = look_up(lookup->host);
    lookup->written.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto sent = write(lookup->done_fd.get(), &one, sizeof one);
  }).detach();
}

// The one that is under way already, if this thread has one: where a name server does not answer,
// who asks again and again would have a thread for each time.
std::shared_ptr<Lookup> lookup_of(const std::string& host) {
  thread_local std::map<std::string, std::weak_ptr<Lookup>> under_way;
  std::erase_if(under_way, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Lookup>& known = under_way[host];
  if (auto lookup = known.lock()) return lookup;
  const auto lookup = std::make_shared<Lookup>();
  lookup->host = host;
  start_thread(lookup);
  known = lookup;
  return lookup;
}

}  // namespace

bool is_address(const std::string& host) {
  asio::error_code error;
  asio::ip::make_address(host, error);
  return !error;
}

asio::awaitable<Resolved> resolve(std::string host) {
  if (is_address(host)) {
    Resolved same;
    same.addresses.push_back(std::move(host));
    co_return same;
  }
  std::shared_ptr<Lookup> lookup;
  asio::posix::stream_descriptor done(co_await asio::this_coro::executor);
  Resolved failed;
  try {
    lookup = lookup_of(host);
    hand_over(duplicate(lookup->done_fd.get()), done);
  } catch (const std::exception& reason) {  // Out of threads or descriptors: for now.
    failed.error = fmt::format("it cannot be looked up: {}", reason.what());
  }
  if (!failed.error.empty()) co_return failed;
  asio::error_code error;
  co_await done.async_wait(asio::posix::stream_descriptor::wait_read,
                           asio::redirect_error(asio::use_awaitable, error));
  if (error || !lookup->written.load(std::memory_order_acquire)) {
    failed.error = error ? error.message() : "it was not looked up";
    co_return failed;
  }
  co_return lookup->result;
}

}  // namespace ddprun::rendezvous
