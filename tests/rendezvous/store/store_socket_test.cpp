// Who listens on a port that several want at the same moment.
#include "rendezvous/store/store_socket.h"

#include <array>
#include <atomic>
#include <system_error>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/process.h"

using ddprun::rendezvous::listen_socket;
using ddprun::rendezvous::UniqueFd;

namespace {

// Lets both go within nanoseconds of each other, which no sleep and no wake-up would.
class SpinBarrier {
 public:
  void meet() {
    const int all = 2 * (arrived_.fetch_add(1) / 2 + 1);
    for (int turns = 1; arrived_.load() < all; ++turns) {
      if (turns % 10'000 == 0) std::this_thread::yield();  // On one core the other is not running.
    }
  }

 private:
  std::atomic<int> arrived_{0};
};

}  // namespace

// That both are refused, where nobody tries again, happens to one of tens of thousands of such
// pairs, and to one of some hundred pairs of launchers: too rarely for a test to wait for it.
TEST_CASE("of those who want to listen at the same moment one does", "[rendezvous][store]") {
  constexpr int rounds = 1'000;
  for (const std::string address : {"127.0.0.1", ""}) {
    INFO("address '" << address << "'");
    const std::uint16_t port = ddprun::testing::free_port();
    std::array<int, 2> wins{};
    std::array<bool, 2> listens{};
    int wrong = 0;
    SpinBarrier barrier;
    const auto contend = [&](std::size_t self) {
      for (int round = 0; round < rounds; ++round) {
        UniqueFd fd;
        barrier.meet();
        try {
          fd = listen_socket(address, port);
        } catch (const std::system_error& error) {
          if (error.code() != std::errc::address_in_use) throw;
        }
        listens[self] = fd.valid();
        wins[self] += fd.valid() ? 1 : 0;
        barrier.meet();
        if (self == 0 && listens[0] == listens[1]) ++wrong;
        fd.reset();
        barrier.meet();
      }
    };
    std::thread other(contend, 1);
    contend(0);
    other.join();
    CHECK(wrong == 0);
    CHECK(wins[0] + wins[1] == rounds);
  }
}
