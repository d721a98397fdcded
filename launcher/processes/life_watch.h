// Tells of workers' deaths as soon as the kernel has marked the locks that they hold
// (rendezvous/contract/life_page.h), long before their pidfds become readable where they hold much
// memory.
//
// A worker that holds no lock (any program that is not on our library) is not told of here, nor is
// anybody on a kernel before 5.16, which cannot wait for several words at once: deaths are seen
// when the process is gone then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ddprun::launcher {

class LifeWatch {
 public:
  // From the watch's own thread; by then the thread with this id, a worker's main thread, is
  // ending. What was told once is not told again.
  using OnEnding = std::function<void(int tid)>;

  // `words` must stay mapped for as long as this lives. More than 127 are not watched.
  LifeWatch(std::vector<std::uint32_t*> words, OnEnding on_ending);
  ~LifeWatch();
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

 private:
  void run();

  std::vector<std::uint32_t*> words_;
  std::vector<std::uint32_t> holders_;  // Thread ids; 0 = nobody that lives.
  OnEnding on_ending_;
  std::atomic<std::uint32_t> ended_{0};  // The thread is to end.
  std::thread thread_;
};

}  // namespace ddprun::launcher
