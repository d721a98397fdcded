// Text that a thread writes: with a write that the test holds back, or makes fail.
#include "launcher/output/background_writer.h"

#include <asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::launcher;
using ddprun::command_line::Written;
using namespace std::chrono_literals;
using ddprun::testing::patience;

namespace {

// A file whose disk the test freezes and thaws.
class FrozenDisk {
 public:
  ~FrozenDisk() { thaw(); }
  void freeze() {
    const std::lock_guard lock(mutex_);
    frozen_ = true;
  }
  void thaw() {
    const std::lock_guard lock(mutex_);
    frozen_ = false;
    changed_.notify_all();
  }
  void fail(int error) {
    const std::lock_guard lock(mutex_);
    error_ = error;
  }
  Written write(std::string_view bytes) {
    std::unique_lock lock(mutex_);
    ++calls_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !frozen_; });
    if (error_ != 0) return {0, error_};
    bytes = bytes.substr(0, 10'000);
    content_ += bytes;
    return {bytes.size(), 0};
  }
  void wait_for_call(int calls) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, patience(20s), [&] { return calls_ >= calls; }));
  }
  void closed_by(std::thread::id thread) {
    const std::lock_guard lock(mutex_);
    closed_by_ = thread;
    changed_.notify_all();
  }
  std::thread::id wait_for_close() {
    std::unique_lock lock(mutex_);
    REQUIRE(
        changed_.wait_for(lock, patience(20s), [&] { return closed_by_ != std::thread::id(); }));
    return closed_by_;
  }
  std::string content() {
    const std::lock_guard lock(mutex_);
    return content_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool frozen_ = false;
  int error_ = 0;
  int calls_ = 0;
  std::string content_;
  std::thread::id closed_by_;
};

struct Setup {
  Setup() {
    // As a file is held: closed with the call that writes to it.
    const std::shared_ptr<FrozenDisk> file(disk.get(), [held = disk](FrozenDisk* closed) {
      closed->closed_by(std::this_thread::get_id());
    });
    writer = std::make_unique<BackgroundWriter>(
        io, [file](std::string_view bytes) { return file->write(bytes); },
        BackgroundWriter::Events{
            .on_relieved = [this] { ++relieved; },
            .on_failed = [this](int error) { failures += std::to_string(error) + " "; }});
  }
  ~Setup() { disk->thaw(); }
  // Runs the loop until this holds.
  template <typename Done>
  bool run_until(const Done& done) {
    const auto limit = std::chrono::steady_clock::now() + patience(20s);
    io.restart();
    while (!done() && std::chrono::steady_clock::now() < limit) io.run_one_for(1s);
    return done();
  }

  asio::io_context io;
  std::shared_ptr<FrozenDisk> disk = std::make_shared<FrozenDisk>();
  std::unique_ptr<BackgroundWriter> writer;
  int relieved = 0;
  std::string failures;
};

}  // namespace

TEST_CASE("what is added while the disk is frozen arrives in order", "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  std::string sent;
  for (int i = 0; i < 2'000; ++i) {
    std::string text = "line " + std::to_string(i) + "\n";
    sent += text;
    if (i % 2 == 0) {
      setup.writer->add(text);
    } else {
      setup.writer->take(text);
      CHECK(text.empty());
    }
  }
  CHECK(setup.writer->pending_bytes() == sent.size());
  CHECK_FALSE(setup.writer->wait(0ms));
  bool alive = false, written = false;
  asio::post(setup.io, [&] { alive = true; });
  CHECK(setup.run_until([&] { return alive; }));
  setup.writer->when_written([&] { written = true; });

  setup.disk->thaw();
  CHECK(setup.run_until([&] { return written; }));
  CHECK(setup.writer->pending_bytes() == 0);
  CHECK(setup.disk->content() == sent);
}

TEST_CASE("who waits in the thread of the loop waits as long as some is taken",
          "[output][background]") {
  Setup setup;
  setup.writer->add(std::string(3 << 20, 'x'));
  CHECK(setup.writer->wait(patience(20s)));
  CHECK(setup.disk->content().size() == 3 << 20);
}

TEST_CASE("whoever fills the queue is told to hold back, and when to go on",
          "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  const std::string piece(100'000, 'x');
  int pieces = 0;
  for (; !setup.writer->congested(); ++pieces) setup.writer->add(piece);
  CHECK(pieces == 11);
  setup.io.poll();
  CHECK(setup.relieved == 0);

  setup.disk->thaw();
  CHECK(setup.run_until([&] { return setup.relieved > 0; }));
  CHECK_FALSE(setup.writer->congested());
  CHECK(setup.writer->wait(patience(20s)));
  setup.io.restart();
  setup.io.poll();
  CHECK(setup.relieved == 1);
}

TEST_CASE("an error is told once, and ends the waits of all", "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  setup.disk->fail(ENOSPC);
  while (!setup.writer->congested()) setup.writer->add(std::string(100'000, 'x'));
  bool written = false;
  setup.writer->when_written([&] { written = true; });

  setup.disk->thaw();
  CHECK(setup.run_until([&] { return written; }));
  CHECK(setup.failures == std::to_string(ENOSPC) + " ");
  CHECK(setup.relieved == 1);
  setup.disk->fail(0);
  setup.writer->add("more");
  CHECK(setup.writer->pending_bytes() == 0);
  CHECK(setup.writer->wait(0ms));
  CHECK(setup.disk->content().empty());
  setup.disk->wait_for_close();
}

TEST_CASE("what is dropped is not written, and what comes after it is", "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  setup.writer->add("in flight ");
  setup.disk->wait_for_call(1);
  setup.writer->add("dropped ");
  bool written = false;
  setup.writer->when_written([&] { written = true; });
  CHECK(setup.writer->drop() == 18);
  CHECK(setup.writer->pending_bytes() == 0);
  CHECK(setup.run_until([&] { return written; }));
  setup.writer->add("after");
  CHECK_FALSE(setup.writer->wait(0ms));

  setup.disk->thaw();
  CHECK(setup.writer->wait(patience(20s)));
  CHECK(setup.disk->content() == "in flight after");
}

TEST_CASE("the thread closes the file when all is written, without its owner",
          "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  setup.writer->add("first ");
  setup.disk->wait_for_call(1);
  setup.writer->add("last");
  SECTION("which has ended it") {
    setup.writer->end();
    CHECK_FALSE(setup.writer->has_ended());
    setup.writer->add("too late");
  }
  SECTION("which is gone") { setup.writer.reset(); }

  setup.disk->thaw();
  CHECK(setup.disk->wait_for_close() != std::this_thread::get_id());
  CHECK(setup.disk->content() == "first last");
  if (setup.writer) CHECK(setup.writer->has_ended());
}

TEST_CASE("nobody is called for a writer that has gone while its disk was frozen",
          "[output][background]") {
  Setup setup;
  setup.disk->freeze();
  setup.disk->fail(EIO);
  bool written = false;
  while (!setup.writer->congested()) setup.writer->add(std::string(100'000, 'x'));
  setup.writer->when_written([&] { written = true; });
  setup.writer.reset();
  setup.disk->thaw();
  setup.disk->wait_for_close();
  setup.io.run();  // Nothing keeps it.
  CHECK_FALSE(written);
  CHECK(setup.failures.empty());
  CHECK(setup.relieved == 0);
}

TEST_CASE("a file to which nothing was written is closed at once", "[output][background]") {
  Setup setup;
  setup.writer->end();
  CHECK(setup.disk->wait_for_close() == std::this_thread::get_id());
  CHECK(setup.writer->has_ended());
}
