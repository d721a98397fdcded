// All of it is written each time, between two changes of a counter: a reader who meets an odd
// counter, or another one afterwards, reads again, and a worker that is stopped in between does not
// hold it up.
#include "worker/progress_page.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "worker/stack_page.h"
#include "worker/worker_env.h"

namespace ddprun::worker {
namespace {

using Layout = rendezvous::ProgressPageLayout;

// A launcher of an earlier version has memory for what came later, and does not look at it.
constexpr std::size_t bytes_of_first_layout = offsetof(Layout, waiting_since_ns);

constexpr double weight_of_last_step = 0.1;  // What is shown follows a change within some steps.

std::int64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// "FD:OFFSET" mapped; null where there is no such thing: the variable may have come through a shell
// or a container that closed the descriptor, or has another file there.
void* map_page(const std::string& place) {
  int fd = -1;
  long long offset = -1;
  const char* const end = place.data() + place.size();
  const auto first = std::from_chars(place.data(), end, fd);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return nullptr;
  const auto second = std::from_chars(first.ptr + 1, end, offset);
  if (second.ec != std::errc() || second.ptr != end || fd < 0 || offset < 0) return nullptr;
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 ||
      facts.st_size < offset + static_cast<long long>(rendezvous::progress_page_stride)) {
    return nullptr;
  }
  void* const page = ::mmap(nullptr, rendezvous::progress_page_stride, PROT_READ | PROT_WRITE,
                            MAP_SHARED, fd, offset);
  return page == MAP_FAILED ? nullptr : page;
}

// A mapping stays for good: this process may hold its life lock there (worker/life_lock.h), and a
// wait that is over is taken back where it was told. There are as many as a node has places.
void* mapped_once(const std::string& place) {
  static std::map<std::string, void*> mappings;
  const auto [entry, fresh] = mappings.try_emplace(place, nullptr);
  if (fresh) entry->second = map_page(place);
  return entry->second;
}

void* place_in_environment() {
  return mapped_once(environment_variable(rendezvous::progress_page_variable).value_or(""));
}

void*& place_of_launcher() {
  static void* memory = place_in_environment();
  return memory;
}

double smoothed(double before, double now, bool first) {
  return first ? now : before + weight_of_last_step * (now - before);
}

// Null where no launcher has made it one that this library knows.
Layout* layout_at(void* memory) {
  auto* const page = static_cast<Layout*>(memory);
  if (page == nullptr ||
      std::memcmp(page->magic, rendezvous::progress_page_magic, sizeof page->magic) != 0 ||
      page->version != rendezvous::progress_page_version || page->bytes < bytes_of_first_layout) {
    return nullptr;
  }
  return page;
}

}  // namespace

void* memory_of_launcher() { return place_of_launcher(); }

ProgressPage& ProgressPage::own() {
  static ProgressPage page(memory_of_launcher());
  return page;
}

ProgressPage::ProgressPage(void* memory) : page_(layout_at(memory)) {
  now_.step = now_.total_steps = now_.epoch = -1;
  now_.loss = std::numeric_limits<double>::quiet_NaN();
}

void ProgressPage::follow_rank() {
  place_of_launcher() = place_in_environment();
  page_ = layout_at(place_of_launcher());
  answer_for_stacks();
}

void ProgressPage::phase(std::string_view name) {
  if (page_ == nullptr) return;
  tells_phases_ = true;
  set_phase(name);
  publish();
}

void ProgressPage::step_done(const StepFacts& step) {
  if (page_ == nullptr) return;
  tells_steps_ = true;
  set_step(step);
  publish();
}

void ProgressPage::computes() {
  if (page_ == nullptr || tells_phases_) return;
  set_phase("compute");
  publish();
}

void ProgressPage::waits() {
  if (page_ == nullptr) return;
  phase_before_ = tells_phases_ ? now_.phase : "";
  set_phase("all-reduce");
  publish();
}

void ProgressPage::reduced(std::chrono::nanoseconds waited) {
  if (page_ == nullptr) return;
  set_phase(phase_before_);
  if (!tells_steps_) {
    using Seconds = std::chrono::duration<double>;
    const auto now = std::chrono::steady_clock::now();
    StepFacts facts{.step = ++reductions_};
    facts.wait_s = Seconds(waited).count();
    facts.step_s = last_reduced_ ? Seconds(now - *last_reduced_).count() : 0;
    last_reduced_ = now;
    set_step(facts);
  }
  publish();
}

void ProgressPage::set_phase(std::string_view name) {
  constexpr std::size_t longest = sizeof(Layout::phase) - 1;
  std::memset(now_.phase, 0, sizeof now_.phase);
  std::memcpy(now_.phase, name.data(), std::min(name.size(), longest));
}

void ProgressPage::set_step(const StepFacts& step) {
  const bool first = now_.step_s <= 0;
  now_.step = step.step;
  now_.total_steps = step.total_steps;
  now_.epoch = step.epoch;
  now_.images += step.images;
  now_.step_s = smoothed(now_.step_s, step.step_s, first);
  now_.data_s = smoothed(now_.data_s, step.data_s, first);
  now_.wait_s = smoothed(now_.wait_s, step.wait_s, first);
  now_.data_total_s += step.data_s;
  now_.wait_total_s += step.wait_s;
  images_per_step_ = smoothed(images_per_step_, static_cast<double>(step.images), first);
  now_.images_per_s = now_.step_s > 0 ? images_per_step_ / now_.step_s : 0;
  if (step.loss) now_.loss = *step.loss;
}

void ProgressPage::publish() {
  constexpr std::size_t begin = offsetof(Layout, said_at_ns);
  now_.said_at_ns = monotonic_ns();
  const std::atomic_ref writes(page_->writes);
  // The launcher may have set it to 0 meanwhile, for another attempt.
  const std::uint64_t before = writes.load(std::memory_order_relaxed) & ~std::uint64_t{1};
  writes.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(reinterpret_cast<char*>(page_) + begin, reinterpret_cast<const char*>(&now_) + begin,
              bytes_of_first_layout - begin);
  writes.store(before + 2, std::memory_order_release);
}

WaitForOthers::WaitForOthers(ProgressPage& page) {
  if (page.page_ == nullptr) return;
  std::int64_t none = 0;
  std::int64_t* const since = &page.page_->waiting_since_ns;
  if (std::atomic_ref(*since).compare_exchange_strong(none, monotonic_ns())) since_ = since;
}

WaitForOthers::~WaitForOthers() {
  if (since_ != nullptr) std::atomic_ref(*since_).store(0, std::memory_order_release);
}

}  // namespace ddprun::worker
