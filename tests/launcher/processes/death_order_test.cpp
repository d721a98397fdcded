// The kernel's word on which of several processes began to end first.
#include "launcher/processes/death_order.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

// A process with its marks that lives until it is killed; it has made them when this returns.
int start(const DeathOrder& order, int worker) {
  const DeathMarks marks = order.marks(worker);
  std::vector<sembuf> operations = marks.operations;
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const int pid = ::fork();
  if (pid == 0) {
    if (::semop(marks.id, operations.data(), operations.size()) != 0) ::_exit(1);
    const char byte = 'x';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  CHECK(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  return pid;
}

void end(int pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

TEST_CASE("the order of deaths is known for every pair", "[death_order]") {
  DeathOrder order(3);
  if (order.id() < 0) DDPRUN_SKIP("no System V semaphores for us");
  const std::array<std::array<int, 3>, 6> sequences = {
      {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}};
  for (const auto& sequence : sequences) {
    order.reset();
    std::array<int, 3> pids{};
    for (int worker = 0; worker < 3; ++worker) pids[worker] = start(order, worker);

    for (const int worker : sequence) end(pids[worker]);

    for (int earlier = 0; earlier < 3; ++earlier) {
      for (int later = earlier + 1; later < 3; ++later) {
        const int first = sequence[earlier], second = sequence[later];
        CHECK(order.began_before(first, second, pids[second]));
        CHECK_FALSE(order.began_before(second, first, pids[first]));
      }
    }
  }
}

TEST_CASE("who lives has not begun to end", "[death_order]") {
  DeathOrder order(2);
  if (order.id() < 0) DDPRUN_SKIP("no System V semaphores for us");
  const int dies = start(order, 0), lives = start(order, 1);

  end(dies);

  CHECK_FALSE(order.began_before(1, 0, dies));
  end(lives);
}

TEST_CASE("a worker that ended before another one was started was earlier", "[death_order]") {
  DeathOrder order(2);
  if (order.id() < 0) DDPRUN_SKIP("no System V semaphores for us");
  const int first = start(order, 0);
  end(first);
  const int second = start(order, 1);
  CHECK_FALSE(order.began_before(1, 0, first));

  end(second);

  CHECK(order.began_before(0, 1, second));
}

TEST_CASE("without semaphores no order is claimed", "[death_order]") {
  for (const int workers : {0, 1, DeathOrder::workers_max + 1}) {
    const DeathOrder order(workers);
    CHECK(order.id() == -1);
    CHECK(order.marks(0).operations.empty());
    CHECK_FALSE(order.began_before(0, 1, 77));
  }
  const DeathOrder two(2);
  CHECK_FALSE(two.began_before(0, 5, 77));
}

TEST_CASE("the semaphores go with their owner", "[death_order]") {
  int id = -1;
  {
    const DeathOrder order(2);
    id = order.id();
    if (id < 0) DDPRUN_SKIP("no System V semaphores for us");
    CHECK(::semctl(id, 0, GETVAL) == 0);
  }
  CHECK(::semctl(id, 0, GETVAL) == -1);
}
