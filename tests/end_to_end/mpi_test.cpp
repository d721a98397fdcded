// --backend mpi under mpirun: the weights of the cpu backend, and errors on all ranks.
#include <filesystem>

#include "tests/end_to_end/small_training.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;

namespace {

constexpr auto limit = 30s;  // Of seconds.

std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program) {
  return std::vector<std::string>{DDPRUN_MPIEXEC, "-n", std::to_string(ranks), "--oversubscribe",
                                  "--allow-run-as-root"} +
         program;
}

// What each of three ranks said.
std::vector<std::string> errors_in(const std::string& mode) {
  TemporaryFolder folder;
  const auto result = run(mpirun(3, {DDPRUN_MPI_WORKER, mode, folder.path()}), limit);
  INFO(result.output);
  // mpiexec of Open MPI 4.1 stands for ever at times, after all ranks have ended as they should and
  // it has said so: its PMIx_server_finalize() waits for a thread that waits for a lock.
  CHECK((result.ended || contains(result.output, "exited with non-zero status")));
  CHECK(result.status != 0);
  return {content_of(folder / "0"), content_of(folder / "1"), content_of(folder / "2")};
}

void check_all_say(const std::string& mode, const std::string& text) {
  for (const std::string& error : errors_in(mode)) {
    INFO(mode << ": " << error);
    CHECK(contains(error, text));
  }
}

}  // namespace

TEST_CASE("different calls over MPI are an error on all ranks that says who called what") {
  check_all_say("other-count", "rank 1 called all_reduce(count=4999, float32, sum), call 2");
  check_all_say("other-call", "rank 1 called barrier(), call 2");
  check_all_say("null", "rank 1: the data is a null pointer");
}

TEST_CASE("a message over MPI that does not fit its receive is an error on all ranks") {
  check_all_say("other-message",
                "rank 0 called send/recv(count=10, float32), call 1, but rank 1 called "
                "send/recv(count=9, float32), call 1");
}

TEST_CASE("abort from another thread ends the calls of all ranks over MPI") {
  check_all_say("abort", "the user pressed stop");
}

TEST_CASE("a rank that does not come is named when the others' time over MPI is up") {
  const auto errors = errors_in("absent");
  CHECK(contains(errors[0], "timed out after 400 ms"));
  CHECK(contains(errors[0], ": rank 1 did not call it, or is stopped"));
  CHECK(contains(errors[1], "timed out after 400 ms"));  // From the rank that saw it.
  CHECK(contains(errors[2], ": rank 1 did not call it, or is stopped"));
}

TEST_CASE("a call over MPI that was given up leaves MPI the memory that it may still write to") {
  CHECK(errors_in("late").front() == "MPI wrote to nothing else");
}

TEST_CASE("a meeting over MPI that a rank gave up ends for those that come later, too") {
  const auto errors = errors_in("late-to-meet");
  CHECK(contains(errors[0], "an earlier meeting of this process over MPI failed (not all"));
  CHECK(contains(errors[1], "not all processes of MPI made a communicator within 300 ms"));
  CHECK(contains(errors[2], "not all processes of MPI made a communicator within 300 ms"));
}

TEST_CASE("a rank that leaves early is named over MPI") {
  const auto errors = errors_in("leave");
  CHECK(contains(errors[0], "rank 1 closed the communicator"));
  CHECK(contains(errors[2], "rank 1 closed the communicator"));
}

TEST_CASE("a communicator over MPI in a global variable ends a job that has gone well as such") {
  TemporaryFolder folder;
  const auto result = run(mpirun(3, {DDPRUN_MPI_WORKER, "global", folder.path()}), limit);
  INFO(result.output);
  CHECK(result.status == 0);
  for (const char* rank : {"0", "1", "2"}) {
    CHECK(content_of(folder / rank) == "nothing was wrong");
  }
}

TEST_CASE("a rank over MPI that ends with a global communicator is named, and not waited for") {
  const auto errors = errors_in("global-leaves");
  CHECK(contains(errors[0], "rank 1 closed the communicator"));
  CHECK(contains(errors[2], "rank 1 closed the communicator"));
}

#if defined(DDPRUN_WITH_TRAIN)
TEST_CASE("two workers under mpirun train the weights of the cpu backend, over MPI and over cpu") {
  TemporaryFolder folder;
  const auto training = [&](const std::string& name, const std::vector<std::string>& more) {
    return small_training({"--steps", "6", "--checkpoint-dir", folder / name}) + more;
  };
  const auto expected = run(launch({"--standalone", "--nproc-per-node", "2"}) + training("cpu", {}),
                            limit, one_thread);
  INFO(expected.output);
  REQUIRE(expected.status == 0);

  const auto over_mpi = run(mpirun(2, training("mpi", {"--backend", "mpi"})), limit, one_thread);
  INFO(over_mpi.output);
  REQUIRE(over_mpi.status == 0);
  CHECK(contains(over_mpi.output, "mpi: 2 ranks on 1 host, Open MPI"));
  const bool same_over_mpi = newest_tensors(folder / "mpi") == newest_tensors(folder / "cpu");
  CHECK(same_over_mpi);

  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto over_cpu = run(mpirun(2, training("url", {"--init-method", url})), limit, one_thread);
  INFO(over_cpu.output);
  REQUIRE(over_cpu.status == 0);
  const bool same_over_cpu = newest_tensors(folder / "url") == newest_tensors(folder / "cpu");
  CHECK(same_over_cpu);
}

TEST_CASE("shards have the same bits over MPI, whose sums have no fixed order") {
  TemporaryFolder folder;
  const auto training = [&](const std::string& name, const std::vector<std::string>& more) {
    return small_training({"--shards", "4", "--batch-size", "8", "--steps", "4", "--checkpoint-dir",
                           folder / name}) +
           more;
  };
  const auto alone = run(training("alone", {}), limit, one_thread);
  INFO(alone.output);
  REQUIRE(alone.status == 0);
  for (const int workers : {2, 3}) {
    const std::string name = std::to_string(workers);
    const auto over_mpi =
        run(mpirun(workers, training(name, {"--backend", "mpi"})), limit, one_thread);
    INFO(over_mpi.output);
    REQUIRE(over_mpi.status == 0);
    const bool same = newest_tensors(folder / name) == newest_tensors(folder / "alone");
    CHECK(same);
  }
}

TEST_CASE("MPI without mpirun, or without its module, is refused with what to do") {
  const auto alone = run(small_training({"--backend", "mpi", "--rank", "0", "--world-size", "2"}),
                         limit, one_thread);
  INFO(alone.output);
  CHECK(alone.status == 1);
  CHECK(contains(alone.output, "MPI started 1 process, but a worker takes itself for rank 0 of 2"));
  CHECK(contains(alone.output, "mpirun -n 2"));

  // mpirun's variables, which ddprun's workers inherit, make all of them one process of MPI.
  const auto inside = run(mpirun(1, launch({"--standalone", "--nproc-per-node", "2"}) +
                                        small_training({"--backend", "mpi"})),
                          limit, one_thread);
  INFO(inside.output);
  CHECK(inside.status == 1);
  CHECK(contains(inside.output, "MPI started 1 process, but a worker takes itself for rank "));
  CHECK(contains(inside.output, "mpirun -n 2"));
  CHECK_FALSE(contains(inside.output, "SIGSEGV"));

  const auto absent = run(small_training({"--backend", "mpi"}), limit,
                          {{"DDPRUN_MPI_MODULE", "/nonexistent/libddprun_mpi.so"}});
  INFO(absent.output);
  CHECK(absent.status == 1);
  CHECK(contains(absent.output, "/nonexistent/libddprun_mpi.so does not exist"));
  CHECK(contains(absent.output, "scripts/setup --mpi"));
}
#endif
