// What an observer of a communicator is told.
#include "worker/tracing_communicator.h"

#include <string>
#include <thread>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"

using namespace ddprun::worker;

namespace {

class Notes : public CollectiveTracer {
 public:
  std::int64_t collective_begins(const Collective& collective) override {
    lines.push_back(std::string("begin ") + collective.name + " " +
                    std::to_string(collective.bytes));
    return static_cast<std::int64_t>(lines.size());
  }
  void collective_ends(const Collective& collective, std::int64_t begun) noexcept override {
    lines.push_back(std::string("end ") + collective.name + " of " + std::to_string(begun));
  }

  std::vector<std::string> lines;
};

// Runs `body` on every rank with a communicator of its own, told to the rank's notes.
template <typename Body>
void on_traced_ranks(std::vector<Notes>& notes, Body body) {
  const Cluster cluster{.world = static_cast<int>(notes.size())};
  const auto board = MappedExchange::create(cluster.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cluster.world; ++rank) {
    threads.emplace_back([&, rank] {
      Notes& own = notes[static_cast<std::size_t>(rank)];
      const auto communicator = trace(connect_rank(cluster, rank, board), own);
      body(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("a traced communicator does the same, and tells of each collective",
          "[worker][communicator]") {
  std::vector<Notes> notes(2);
  std::vector<std::vector<float>> results(2);
  on_traced_ranks(notes, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<float> values{1.0F + static_cast<float>(rank), 5.0F};
    communicator.all_reduce(values.data(), 2, DataType::Float32, ReduceOp::Sum);
    communicator.broadcast(values.data(), 1, DataType::Float32, 1);
    std::vector<float> all(2);
    communicator.all_gather(values.data(), all.data(), 1, DataType::Float32);
    communicator.reduce_scatter(all.data(), values.data(), 1, DataType::Float32, ReduceOp::Sum);
    if (rank == 0) communicator.send(values.data(), 2, DataType::Float32, 1);
    if (rank == 1) communicator.recv(values.data(), 2, DataType::Float32, 0);
    communicator.barrier();
    results[rank] = values;
  });

  CHECK(results[0] == std::vector<float>{6.0F, 10.0F});
  CHECK(results[1] == results[0]);
  CHECK(notes[1].lines == std::vector<std::string>{
                              "begin all_reduce 8", "end all_reduce of 1", "begin broadcast 4",
                              "end broadcast of 3", "begin all_gather 4", "end all_gather of 5",
                              "begin reduce_scatter 8", "end reduce_scatter of 7", "begin recv 8",
                              "end recv of 9", "begin barrier 0", "end barrier of 11"});
}

TEST_CASE("an observer learns of the end of a collective that failed", "[worker][communicator]") {
  std::vector<Notes> notes(1);
  bool thrown = false;
  on_traced_ranks(notes, [&](Communicator& communicator) {
    communicator.abort("for a test");
    try {
      communicator.barrier();
    } catch (const CommunicatorError&) {
      thrown = true;
    }
  });
  CHECK(thrown);
  CHECK(notes[0].lines == std::vector<std::string>{"begin barrier 0", "end barrier of 1"});
}
