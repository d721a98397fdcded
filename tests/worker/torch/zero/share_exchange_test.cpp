// What each rank alone has computed is on all ranks afterwards, wherever pieces are cut.
#include "worker/torch/zero/share_exchange.h"

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"

namespace ddprun::worker {
namespace {

// Of odd sizes and several types, one in channels-last, one within a larger tensor, one empty.
std::vector<at::Tensor> tensors_of(int share, int filled_by) {
  const auto seed = static_cast<std::uint64_t>(100 * share + filled_by);
  return seeded(seed, [] {
    return std::vector<at::Tensor>{
        torch::randn({3, 5, 7, 2}).contiguous(at::MemoryFormat::ChannelsLast),
        torch::randn({13}, at::kBFloat16),
        torch::randn({0, 4}),
        torch::randn({40}, at::kDouble).narrow(0, 7, 11),
        torch::randint(2, {5}, at::kBool),
        torch::randn({}),
        torch::view_as_complex(torch::randn({9, 2})),
    };
  });
}

// By rank: all shares, of which a rank's own alone is what it has computed.
std::vector<std::vector<at::Tensor>> shares_on(int rank, int world) {
  std::vector<std::vector<at::Tensor>> shares;
  for (int share = 0; share + 1 < world; ++share) shares.push_back(tensors_of(share, rank));
  shares.emplace_back();  // The last rank has none.
  return shares;
}

TEST_CASE("shares pass through any memory, whole", "[worker][zero]") {
  constexpr int world = 3;
  for (const std::int64_t bytes : {3, 100, 192, 1000, 32 << 20}) {
    for (const Wiring wiring : wirings) {
      INFO(bytes << " bytes over " << name_of(wiring));
      const auto errors = spawn({world, wiring}, [&](Communicator& communicator) {
        auto shares = shares_on(communicator.rank(), world);
        const void* const place = shares[0][0].data_ptr();
        ShareExchange exchange(communicator, bytes);
        for (int again = 0; again < 2; ++again) {
          exchange.run(shares);
          for (int owner = 0; owner + 1 < world; ++owner) {
            const auto expected = tensors_of(owner, owner);
            for (std::size_t i = 0; i < expected.size(); ++i) {
              const at::Tensor& got = shares[static_cast<std::size_t>(owner)][i];
              RANK_CHECK(at::equal(got, expected[i]));
              RANK_CHECK(got.strides() == expected[i].strides());
            }
          }
        }
        RANK_CHECK(shares[0][0].data_ptr() == place);
      });
      require_no_errors(errors);
    }
  }
}

TEST_CASE("what lies around a share is not touched", "[worker][zero]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    const at::Tensor memory = at::full({64}, communicator.rank(), at::kInt);
    ShareExchange exchange(communicator);
    exchange.run({{memory.narrow(0, 10, 5)}, {memory.narrow(0, 40, 7)}});
    at::Tensor expected = at::full({64}, communicator.rank(), at::kInt);
    expected.narrow(0, 10, 5).fill_(0);
    expected.narrow(0, 40, 7).fill_(1);
    RANK_CHECK(at::equal(memory, expected));
  });
}

TEST_CASE("without anything to share nothing is asked of the communicator", "[worker][zero]") {
  run_ranks_well(1, [](ThreadCommunicator& communicator) {
    const at::Tensor alone = at::ones({3});
    ShareExchange exchange(communicator);
    exchange.run({{alone}});
    RANK_CHECK(at::equal(alone, at::ones({3})));
  });
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    ShareExchange exchange(communicator);
    exchange.run({{}, {at::empty({0})}});
  });
}

}  // namespace
}  // namespace ddprun::worker
