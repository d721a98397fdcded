// Two buffers change places: one is filled by the loop, the other one is being written. So text is
// copied once at most, and a thread that is behind finds more to write at a time.
#include "launcher/output/background_writer.h"

#include <signal.h>

#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace ddprun::launcher {

struct BackgroundWriter::State : std::enable_shared_from_this<State> {
  State(asio::io_context& io_context, command_line::WriteCall write_call, Events handlers)
      : io(io_context), write(std::move(write_call)), events(std::move(handlers)) {}

  using Lock = std::unique_lock<std::mutex>;
  void added(Lock lock, std::size_t bytes);
  bool start_thread();
  void run();
  void write_out(Lock& lock);
  void settle();
  void post(std::function<void()> handler);

  asio::io_context& io;
  command_line::WriteCall write;  // The thread's, from its start on.
  Events events;

  std::mutex mutex;  // Of all that follows.
  std::condition_variable wanted, taken;
  std::string queued, batch;            // `batch` is read by the thread without the mutex.
  std::atomic<std::size_t> pending{0};  // Of both; changed with the mutex only.
  std::uint64_t drops = 0;
  bool has_thread = false;
  bool ended = false, failed = false, abandoned = false;
  bool was_congested = false;
  std::function<void()> when_written;
  // Somebody waits for us: the loop must not end for want of work.
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> awaited;
};

BackgroundWriter::BackgroundWriter(asio::io_context& io, command_line::WriteCall write,
                                   Events events)
    : state_(std::make_shared<State>(io, std::move(write), std::move(events))) {}

BackgroundWriter::~BackgroundWriter() {
  end();
  const std::lock_guard lock(state_->mutex);
  state_->abandoned = true;
  state_->awaited.reset();
}

void BackgroundWriter::add(std::string_view text) {
  State::Lock lock(state_->mutex);
  if (text.empty() || state_->failed || state_->ended) return;
  state_->queued += text;
  state_->added(std::move(lock), text.size());
}

void BackgroundWriter::take(std::string& text) {
  State::Lock lock(state_->mutex);
  const std::size_t bytes = text.size();
  if (bytes > 0 && !state_->failed && !state_->ended) {
    if (state_->queued.empty()) {
      std::swap(state_->queued, text);
    } else {
      state_->queued += text;
    }
    state_->added(std::move(lock), bytes);
  }
  text.clear();
}

void BackgroundWriter::State::added(Lock lock, std::size_t bytes) {
  pending += bytes;
  if (pending >= congested_bytes && !was_congested) {
    was_congested = true;
    awaited.emplace(io.get_executor());
  }
  if (!has_thread) has_thread = start_thread();
  // No thread can be had now: better late than lost.
  if (!has_thread) write_out(lock);
  lock.unlock();
  wanted.notify_one();
}

bool BackgroundWriter::State::start_thread() {
  // Signals are the main thread's, which waits for them.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void BackgroundWriter::State::run() {
  Lock lock(mutex);
  while (!failed) {
    if (queued.empty() && !ended && queued.capacity() + batch.capacity() > congested_bytes) {
      std::string().swap(queued);  // A flood is over: its memory is for others.
      std::string().swap(batch);
    }
    wanted.wait(lock, [this] { return !queued.empty() || ended; });
    if (queued.empty()) break;
    write_out(lock);
  }
  lock.unlock();
  write = nullptr;
}

void BackgroundWriter::State::write_out(Lock& lock) {
  batch.clear();
  std::swap(batch, queued);
  const std::uint64_t drops_before = drops;
  for (std::string_view rest = batch; !rest.empty();) {
    lock.unlock();
    const command_line::Written written = write(rest);
    lock.lock();
    if (drops != drops_before) return;  // It counts as dropped, and what came since waits.
    if (written.error != 0 && written.bytes > 0) {
      if (events.on_refused) {
        post([handler = events.on_refused, error = written.error] { handler(error); });
      }
    } else if (written.error != 0) {
      failed = true;
      queued.clear();
      pending = 0;
      if (events.on_failed) {
        post([handler = events.on_failed, error = written.error] { handler(error); });
      }
      return settle();
    }
    rest.remove_prefix(written.bytes);
    pending -= written.bytes;
    settle();
  }
}

// Tells whoever waits for what has come about.
void BackgroundWriter::State::settle() {
  taken.notify_all();
  if (was_congested && pending <= relieved_bytes) {
    was_congested = false;
    if (events.on_relieved) post(events.on_relieved);
  }
  if (pending == 0 && when_written) post(std::exchange(when_written, nullptr));
  if (!was_congested && !when_written) awaited.reset();
}

void BackgroundWriter::State::post(std::function<void()> handler) {
  if (!abandoned) asio::post(io, std::move(handler));
}

void BackgroundWriter::end() {
  State::Lock lock(state_->mutex);
  state_->ended = true;
  const bool has_thread = state_->has_thread;
  lock.unlock();
  state_->wanted.notify_one();
  if (!has_thread) state_->write = nullptr;
}

bool BackgroundWriter::has_ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended && state_->pending == 0;
}

std::size_t BackgroundWriter::pending_bytes() const { return state_->pending; }

void BackgroundWriter::when_written(std::function<void()> handler) {
  const std::lock_guard lock(state_->mutex);
  state_->when_written = std::move(handler);
  state_->awaited.emplace(state_->io.get_executor());
  state_->settle();
}

bool BackgroundWriter::wait(std::chrono::milliseconds stuck_limit) {
  State::Lock lock(state_->mutex);
  while (state_->pending > 0) {
    const std::size_t before = state_->pending;
    const bool moved =
        state_->taken.wait_for(lock, stuck_limit, [&] { return state_->pending != before; });
    if (!moved) return false;
  }
  return true;
}

std::size_t BackgroundWriter::drop() {
  const std::lock_guard lock(state_->mutex);
  ++state_->drops;
  state_->queued.clear();
  const std::size_t dropped = state_->pending.exchange(0);
  state_->settle();
  return dropped;
}

}  // namespace ddprun::launcher
