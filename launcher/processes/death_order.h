// In which order workers began to end.
//
// A process first closes its files, which its peers notice, and only then tells its parent that it
// has ended: when the machine is busy, or a driver takes long to release a GPU, a peer that dies of
// the broken connection is seen dead first. To blame the right one we ask the kernel: each worker
// holds an undo of System V semaphores, which the kernel carries out before it closes any file, and
// notes who was the last. One semaphore for each pair of workers: that is their order.
//
// Source: Linux, do_exit() calls exit_sem() before exit_files(); semop(2), semctl(2).
#pragma once

#include <sys/sem.h>
#include <sys/types.h>

#include <vector>

namespace ddprun::launcher {

// What one worker has to do between fork and exec: semop(id, operations). Empty: nothing.
struct DeathMarks {
  int id = -1;
  std::vector<sembuf> operations;
};

class DeathOrder {
 public:
  static constexpr int workers_max = 64;

  // For this many workers, numbered from 0. Where the system has no semaphores for us, or there are
  // too many workers, nothing is known of any order.
  explicit DeathOrder(int workers);
  ~DeathOrder();  // Gives the semaphores back.
  DeathOrder(const DeathOrder&) = delete;
  DeathOrder& operator=(const DeathOrder&) = delete;

  // Before the workers of an attempt are started; none of the one before is left.
  void reset();

  DeathMarks marks(int worker) const;

  // Whether `worker` began to end before `ended` did, a worker that has ended, with that pid. False
  // also when it is not known.
  bool began_before(int worker, int ended, int ended_pid) const;

  int workers() const { return workers_; }
  int id() const { return id_; }  // -1 = none. They outlive this process if it is killed.

 private:
  int pair(int one, int other) const;

  int workers_;
  int id_ = -1;
};

}  // namespace ddprun::launcher
