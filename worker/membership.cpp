// The thread that listens while the other one is in a collective, and who of the two does what: it
// alone reads the channel, the caller alone writes to it and changes the environment.
#include "worker/membership.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "rendezvous/blocked_signals.h"
#include "rendezvous/unique_fd.h"
#include "worker/cpu/cpu_connect.h"
#include "worker/error_file.h"
#include "worker/membership_state.h"
#include "worker/owning_process.h"
#include "worker/progress_page.h"
#include "worker/rank_environment.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

using Phase = MembershipState::Phase;

// Nothing was heard for so long: the peers have met, and the step at hand is none of those that a
// loss has made late.
constexpr int quiet_ms = 1'000;

constexpr std::chrono::milliseconds ask_again{50};

using Clock = std::chrono::steady_clock;

bool has_option(int fd, int option, int expected) {
  int value = 0;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == expected;
}

// A program in between may have closed it, and opened something else at its number.
bool is_channel(int fd) {
  return fd >= 0 && has_option(fd, SO_DOMAIN, AF_UNIX) && has_option(fd, SO_TYPE, SOCK_STREAM);
}

// Whoever reads the variable later, a second Membership or a child, must not take the descriptor,
// or what has its number by then, for its own.
void forget_channel() { ::unsetenv(rendezvous::rank_variable); }

// The same in all attempts.
std::chrono::milliseconds read_launchers_limit() {
  constexpr std::chrono::milliseconds unknown{20'000};
  const auto text = environment_variable(rendezvous::peer_word_limit_variable);
  const int number = text ? std::atoi(text->c_str()) : 0;
  return number > 0 ? std::chrono::milliseconds(number) : unknown;
}

void raise_event(const rendezvous::UniqueFd& event) { ::eventfd_write(event.get(), 1); }

void lower_event(const rendezvous::UniqueFd& event) {
  eventfd_t ignored = 0;
  ::eventfd_read(event.get(), &ignored);
}

}  // namespace

struct Membership::Impl {
  explicit Impl(MembershipOptions given) : limits(given) {}
  ~Impl();

  bool begin(int fd);
  bool say(char byte);

  bool wait(std::unique_lock<std::mutex>& lock, Clock::time_point until, const GiveUp& give_up,
            const std::function<bool()>& done);

  void listen();
  void leave_peers();
  void hear(std::string_view bytes);
  void hang_up();

  const MembershipOptions limits;
  const std::chrono::milliseconds launchers_limit = read_launchers_limit();
  rendezvous::UniqueFd channel;
  rendezvous::UniqueFd interrupt;  // Readable while an attempt is over that was not left.
  rendezvous::UniqueFd leaving;    // Readable: the guarded communicator is to be aborted.
  rendezvous::UniqueFd ending;     // Readable: the thread ends.
  std::mutex mutex;                // Guards what follows.
  std::condition_variable changed;
  MembershipState state;
  Communicator* guarded = nullptr;
  std::uint64_t guard_number = 0;  // Of the latest guard.
  bool parked = false;             // Until there is a rank.
  bool prepared = false;           // Of the thread alone: for the next meeting of peers.
  const OwningProcess owner;
  std::thread thread;
};

bool Membership::Impl::begin(int fd) {
  interrupt = rendezvous::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  leaving = rendezvous::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ending = rendezvous::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!interrupt || !leaving || !ending) return false;
  channel = rendezvous::UniqueFd(fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const rendezvous::BlockedSignals inherited_by_the_thread;
  thread = std::thread([this] { listen(); });
  return true;
}

Membership::Impl::~Impl() {
  if (!owner.is_this()) {
    leave_to_parent(thread);
    leave_to_parent(changed);
    return;
  }
  if (!thread.joinable()) return;
  raise_event(ending);
  thread.join();
}

void Membership::Impl::listen() {
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd polled[] = {
        {channel.get(), POLLIN, 0}, {ending.get(), POLLIN, 0}, {leaving.get(), POLLIN, 0}};
    const int ready = ::poll(polled, std::size(polled), prepared ? -1 : quiet_ms);
    if (ready == 0) {
      prepare_cpu_peers();
      prepared = true;
    }
    if (ready <= 0) continue;
    if (polled[1].revents != 0) return;
    if (polled[2].revents != 0) leave_peers();
    const ssize_t count = ::recv(channel.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return hang_up();
    hear({buffer.data(), static_cast<std::size_t>(count)});
  }
}

void Membership::Impl::hear(std::string_view bytes) {
  const std::lock_guard lock(mutex);
  const Phase before = state.phase();
  state.hear(bytes);
  if (before == Phase::Working && state.phase() == Phase::Over) {
    prepared = false;
    raise_event(interrupt);
    if (guarded != nullptr) guarded->abort("the attempt is over: " + state.why());
  }
  changed.notify_all();
}

void Membership::Impl::leave_peers() {
  lower_event(leaving);
  const std::lock_guard lock(mutex);
  if (guarded != nullptr) guarded->abort("this worker has left the others");
}

void Membership::Impl::hang_up() {
  const std::lock_guard lock(mutex);
  state.hang_up();
  changed.notify_all();
}

// False: the time is up, or whoever waits has given up, which nobody would tell this thread of.
bool Membership::Impl::wait(std::unique_lock<std::mutex>& lock, Clock::time_point until,
                            const GiveUp& give_up, const std::function<bool()>& done) {
  if (!give_up) return changed.wait_until(lock, until, done);
  for (;;) {
    if (done()) return true;
    const auto now = Clock::now();
    if (now >= until || give_up()) return false;
    changed.wait_until(lock, std::min(until, now + ask_again));
  }
}

bool Membership::Impl::say(char byte) {
  for (;;) {
    if (::send(channel.get(), &byte, 1, MSG_NOSIGNAL) == 1) return true;
    if (errno != EINTR) break;
  }
  hang_up();
  return false;
}

Membership::Membership(MembershipOptions limits) : impl_(std::make_unique<Impl>(limits)) {
  const int fd = descriptor_of(rendezvous::rank_variable);
  // Where no descriptors are left, all is as where nobody listens.
  if (!is_channel(fd) || !impl_->begin(fd)) return;
  forget_channel();
  impl_->say(rendezvous::can_park);
}

Membership::~Membership() = default;

bool Membership::offered() const { return impl_->channel.valid(); }

CommunicatorOptions Membership::options(CommunicatorOptions base) const {
  base.interrupt_fd = offered() ? impl_->interrupt.get() : -1;
  return base;
}

int Membership::abort_fd() const { return offered() ? impl_->leaving.get() : -1; }

Membership::Guard Membership::guard(Communicator& communicator) {
  const std::lock_guard lock(impl_->mutex);
  impl_->guarded = &communicator;
  ++impl_->guard_number;
  // The word may have come while the peers were met, or right after.
  if (impl_->state.phase() == Phase::Over) {
    communicator.abort("the attempt is over: " + impl_->state.why());
  }
  return {this, impl_->guard_number};
}

Membership::Guard::~Guard() {
  if (members_ == nullptr) return;
  Impl& impl = *members_->impl_;
  if (!impl.owner.is_this()) return;  // A thread that only the parent has may hold the lock.
  const std::lock_guard lock(impl.mutex);
  // Not what a later guard, which may have taken this one's place, is for.
  if (impl.guard_number == number_) impl.guarded = nullptr;
}

bool Membership::attempt_is_over(const GiveUp& give_up) {
  if (!offered()) return false;
  std::unique_lock lock(impl_->mutex);
  const auto limit = impl_->limits.peer_word_limit.value_or(impl_->launchers_limit);
  impl_->wait(lock, Clock::now() + limit, give_up,
              [&] { return impl_->state.phase() != Phase::Working; });
  return impl_->state.phase() == Phase::Over;
}

std::string Membership::why() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state.why();
}

bool Membership::next_rank(const GiveUp& give_up) {
  if (!attempt_is_over(give_up)) return false;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->state.phase() != Phase::Over) return false;
    impl_->state.park();
    impl_->parked = true;
    lower_event(impl_->interrupt);
  }
  if (!impl_->say(rendezvous::gives_rank_back)) return false;
  rendezvous::Environment environment;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->wait(lock, Clock::time_point::max(), give_up,
                [&] { return impl_->state.phase() != Phase::Parked; });
    if (impl_->state.phase() != Phase::Given) return false;
    environment = impl_->state.take_rank();
    impl_->parked = false;
    if (impl_->state.phase() == Phase::Over) raise_event(impl_->interrupt);
  }
  take_environment(environment);
  forget_channel();
  ProgressPage::own().follow_rank();
  follow_error_file();
  impl_->say(rendezvous::can_park);
  return true;
}

bool Membership::job_is_over() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->parked && impl_->state.phase() == Phase::Gone;
}

StateLead find_lead(Communicator& communicator, const StatePosition& own) {
  static_assert(std::is_trivially_copyable_v<StatePosition>);
  std::vector<StatePosition> ranks(static_cast<std::size_t>(communicator.world_size()));
  communicator.all_gather_on_host(&own, ranks.data(), sizeof own);
  return find_lead(ranks);
}

}  // namespace ddprun::worker
