// What a worker says through its page, and what of it the launcher believes.
#include "launcher/status/progress_pages.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "tests/testing/catch.h"
#include "worker/life_lock.h"
#include "worker/progress_page.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::ProgressPageLayout;
using ddprun::worker::ProgressPage;
using ddprun::worker::StepFacts;
namespace rendezvous = ddprun::rendezvous;

namespace {

// The worker's own mapping of what the launcher has made.
struct Mapped {
  Mapped(const ProgressPages& pages, int local_rank)
      : memory(::mmap(nullptr, sizeof(ProgressPageLayout), PROT_READ | PROT_WRITE, MAP_SHARED,
                      pages.fd(),
                      static_cast<off_t>(rendezvous::progress_page_stride) * local_rank)) {
    REQUIRE(memory != MAP_FAILED);
  }
  ~Mapped() { ::munmap(memory, sizeof(ProgressPageLayout)); }
  ProgressPageLayout& layout() const { return *static_cast<ProgressPageLayout*>(memory); }
  void* memory;
};

}  // namespace

TEST_CASE("17.2: what a worker says of step and phase is what the launcher reads", "[watch]") {
  ProgressPages pages(2);
  REQUIRE(pages.fd() >= 0);
  const Mapped memory(pages, 1);
  ProgressPage page(memory.memory);
  REQUIRE(page.is_there());
  CHECK_FALSE(pages.read(1));  // Nothing was said.

  page.phase("forward");
  auto read = pages.read(1);
  REQUIRE(read);
  CHECK(read->phase == "forward");
  CHECK(read->step == -1);
  CHECK_FALSE(read->loss);
  REQUIRE(read->age_s);
  CHECK(*read->age_s < 60);

  page.step_done({.step = 7,
                  .total_steps = 90,
                  .epoch = 2,
                  .images = 50,
                  .step_s = 0.5,
                  .data_s = 0.25,
                  .wait_s = 0.125,
                  .loss = 1.5});
  read = pages.read(1);
  CHECK(read->step == 7);
  CHECK(read->total_steps == 90);
  CHECK(read->epoch == 2);
  CHECK(read->images == 50);
  CHECK(read->images_per_s == 100);
  CHECK(read->step_s == 0.5);
  CHECK(read->data_s == 0.25);
  CHECK(read->wait_s == 0.125);
  CHECK(read->loss == 1.5);

  // What is shown follows within some steps; sums are sums; a loss that was not looked at stays.
  page.step_done({.step = 8, .images = 50, .step_s = 1.5, .data_s = 0.25, .wait_s = 0.125});
  read = pages.read(1);
  CHECK(std::abs(read->step_s - 0.6) < 1e-9);
  CHECK(std::abs(read->images_per_s - 50 / 0.6) < 1e-9);
  CHECK(read->images == 100);
  CHECK(read->data_total_s == 0.5);
  CHECK(read->wait_total_s == 0.25);
  CHECK(read->loss == 1.5);
  CHECK(read->phase == "forward");

  CHECK_FALSE(pages.read(0));  // Its neighbour's is its own.
  CHECK_FALSE(pages.read(2));
  CHECK_FALSE(pages.read(-1));
  pages.clear();  // Another attempt.
  CHECK_FALSE(pages.read(1));
  page.phase("data");  // A process that went on in place.
  CHECK(pages.read(1)->phase == "data");
}

TEST_CASE("17.2: for a program that says nothing its library counts reductions", "[watch]") {
  ProgressPages pages(1);
  const Mapped memory(pages, 0);
  ProgressPage page(memory.memory);
  const std::chrono::milliseconds waited{40};
  page.computes();
  CHECK(pages.read(0)->phase == "compute");
  page.waits();
  CHECK(pages.read(0)->phase == "all-reduce");
  page.reduced(waited);
  CHECK(pages.read(0)->phase.empty());
  CHECK(pages.read(0)->step == 1);
  CHECK(pages.read(0)->wait_s == 0.04);
  page.waits();
  page.reduced(waited);
  CHECK(pages.read(0)->step == 2);

  // One that speaks for itself is not overruled.
  page.step_done({.step = 40});
  page.phase("backward");
  page.computes();
  CHECK(pages.read(0)->phase == "backward");
  page.waits();
  CHECK(pages.read(0)->phase == "all-reduce");
  page.reduced(waited);
  CHECK(pages.read(0)->phase == "backward");
  CHECK(pages.read(0)->step == 40);
}

TEST_CASE("17.2: whatever a program writes to its page, what is shown is fit to be shown",
          "[watch]") {
  ProgressPageLayout page{};
  page.said_at_ns = 1'000'000'000;
  page.writes = 3;  // It died while it wrote.
  page.step = page.epoch = std::numeric_limits<std::int64_t>::min();
  page.images = -5;
  page.images_per_s = std::numeric_limits<double>::quiet_NaN();
  page.step_s = -1;
  page.wait_s = std::numeric_limits<double>::infinity();
  page.loss = -std::numeric_limits<double>::infinity();
  std::memset(page.phase, '\033', sizeof page.phase);  // No end, and a terminal's commands.
  auto read = read_progress(page, 3'500'000'000);
  REQUIRE(read);
  CHECK(read->step == -1);
  CHECK(read->epoch == -1);
  CHECK(read->images == 0);
  CHECK(read->images_per_s == 0);
  CHECK(read->step_s == 0);
  CHECK(read->wait_s == 0);
  CHECK_FALSE(read->loss);
  CHECK(read->phase == std::string(32, '?'));
  CHECK(read->age_s == 2.5);
  CHECK(read_progress(page, 0)->age_s == 0);  // A clock of another machine, or none.
}

TEST_CASE("17.2: a page that is not the launcher's is not written to", "[watch]") {
  ProgressPageLayout page{};
  CHECK_FALSE(ProgressPage(&page).is_there());
  std::memcpy(page.magic, rendezvous::progress_page_magic, sizeof page.magic);
  page.version = rendezvous::progress_page_version + 1;
  page.bytes = sizeof page;
  CHECK_FALSE(ProgressPage(&page).is_there());
  page.version = rendezvous::progress_page_version;
  page.bytes = 100;
  ProgressPage refused(&page);
  refused.phase("x");
  refused.step_done({.step = 1});
  refused.waits();
  refused.reduced({});
  CHECK(page.said_at_ns == 0);
  page.bytes = sizeof page + 64;  // A later launcher's, which has more fields.
  ProgressPage taken(&page);
  taken.phase("a phase whose name is longer than there is room for");
  CHECK(std::string(page.phase) == "a phase whose name is longer th");
}

TEST_CASE("16.3: a rank that waits for others says since when, apart from its steps", "[watch]") {
  using ddprun::worker::WaitForOthers;
  ProgressPages pages(1);
  const Mapped memory(pages, 0);
  ProgressPage page(memory.memory);
  {
    const WaitForOthers outer(page);
    CHECK(memory.layout().waiting_since_ns > 0);
    page.phase("validation");  // Another thread's word takes nothing of it back.
    REQUIRE(pages.read(0));
    CHECK(pages.read(0)->waiting_s.value_or(-1) >= 0);
    { const WaitForOthers inner(page); }
    CHECK(pages.read(0)->waiting_s);
  }
  CHECK_FALSE(pages.read(0)->waiting_s);
  // Whoever writes no time says it by the phase's name.
  page.phase("all-reduce");
  CHECK(pages.read(0)->waiting_s);
  page.phase("wait for rank 0");
  CHECK(pages.read(0)->waiting_s);
  page.phase("await nothing");
  CHECK_FALSE(pages.read(0)->waiting_s);
  // A worker that was killed in a wait leaves nothing to the next attempt.
  const WaitForOthers until_cleared(page);
  pages.clear();
  page.phase("forward");
  CHECK_FALSE(pages.read(0)->waiting_s);
}

TEST_CASE("16.3: a page of a launcher that knows of no waits is written as before", "[watch]") {
  ProgressPages pages(1);
  const Mapped memory(pages, 0);
  memory.layout().bytes = offsetof(ProgressPageLayout, waiting_since_ns);
  CHECK(ProgressPage(memory.memory).is_there());
  --memory.layout().bytes;
  CHECK_FALSE(ProgressPage(memory.memory).is_there());
}

TEST_CASE("17.2: a process that was kept says it at the place of its new local rank", "[watch]") {
  ProgressPages pages(2);
  const auto place = [&](int local_rank) {
    return std::to_string(pages.fd()) + ":" +
           std::to_string(rendezvous::progress_page_stride * static_cast<std::size_t>(local_rank));
  };
  const pid_t worker = ::fork();  // Which has a page of its own, and one only.
  if (worker == 0) {
    for (const int local_rank : {1, 0}) {
      ::setenv(rendezvous::progress_page_variable, place(local_rank).c_str(), 1);
      ProgressPage::own().follow_rank();
      ProgressPage::own().step_done({.step = 7 - local_rank, .images = 50});
    }
    ::setenv(rendezvous::progress_page_variable, "nowhere", 1);
    ProgressPage::own().follow_rank();
    ProgressPage::own().step_done({.step = 8, .images = 50});
    // At the last place that it had.
    ::setenv(rendezvous::progress_page_variable, place(0).c_str(), 1);
    ProgressPage::own().follow_rank();
    ::kill(::getpid(), SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(worker, &status, WUNTRACED) == worker);
  REQUIRE(WIFSTOPPED(status));

  CHECK(pages.read(1)->step == 6);
  CHECK(pages.read(0)->step == 7);
  CHECK(pages.read(0)->images == 100);  // Of the process, in both attempts.
  // Its stack is asked for where it is now.
  CHECK(pages.ask_stack(0, worker));

  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
}

TEST_CASE("16.5: who comes to the place of a process that lives elsewhere has a lock, too",
          "[watch]") {
  const ProgressPages pages(2);
  const auto words = pages.life_words();
  if (words.empty()) DDPRUN_SKIP("this C library does not say where its locks are");
  REQUIRE(words.size() == 6);
  const auto start_at_place_1 = [&] {
    const pid_t worker = ::fork();
    if (worker != 0) {
      int status = 0;
      REQUIRE(::waitpid(worker, &status, WUNTRACED) == worker);
      REQUIRE(WIFSTOPPED(status));
      return worker;
    }
    const auto offset = std::to_string(rendezvous::progress_page_stride);
    const std::string place = std::to_string(pages.fd()) + ":" + offset;
    ::setenv(rendezvous::progress_page_variable, place.c_str(), 1);
    ProgressPage::own().follow_rank();
    ddprun::worker::hold_life_lock();
    ddprun::worker::hold_life_lock();  // Takes no second one.
    ::kill(::getpid(), SIGSTOP);
    ::_exit(0);
  };
  // Of the second place: its first lock comes after the first one of the first place.
  const auto holder = [&](std::size_t lock) {
    return static_cast<pid_t>(std::atomic_ref(*words[2 * lock + 1]).load() & FUTEX_TID_MASK);
  };
  const auto end = [](pid_t worker) {
    ::kill(worker, SIGKILL);
    ::waitpid(worker, nullptr, 0);
  };

  const pid_t workers[] = {start_at_place_1(), start_at_place_1(), start_at_place_1()};
  for (std::size_t lock = 0; lock < 3; ++lock) CHECK(holder(lock) == workers[lock]);
  const pid_t without = start_at_place_1();  // Its end is seen when it is gone.
  end(without);

  end(workers[1]);
  CHECK((std::atomic_ref(*words[3]).load() & FUTEX_OWNER_DIED) != 0);
  const pid_t next = start_at_place_1();
  CHECK(holder(1) == next);
  for (std::size_t lock = 0; lock < 3; lock += 2) CHECK(holder(lock) == workers[lock]);
  for (const pid_t worker : {workers[0], workers[2], next}) end(worker);
}
