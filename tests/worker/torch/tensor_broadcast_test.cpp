// One broadcast for tensors of many types and layouts, over the communicators that ranks really
// have; and sums of those that have none of their own.
#include <functional>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

// Values that differ by rank; odd sizes, so that none lies where its type would like to.
std::vector<at::Tensor> tensors_of(int rank) {
  const double value = rank + 1;
  const at::Tensor images = torch::full({2, 3, 5, 5}, value);
  return {torch::full({3}, rank == 0, torch::kBool),
          torch::full({7, 3}, value, torch::kDouble),
          images.contiguous(at::MemoryFormat::ChannelsLast),
          torch::full({5}, value, torch::kHalf),
          torch::full({}, value, torch::kLong),
          torch::empty({0}, torch::kFloat),
          torch::full({1}, value, torch::kUInt8),
          torch::full({11}, value, torch::kBFloat16),
          torch::full({9}, value)};
}

std::exception_ptr caught(const std::function<void()>& call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

TEST_CASE("a broadcast of tensors gives all ranks the root's, whatever types they have",
          "[worker][ddp][communicator]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp, Wiring::TwoHosts}) {
    const auto errors = spawn({3, wiring}, [&](Communicator& communicator) {
      std::vector<at::Tensor> own = tensors_of(communicator.rank());
      TensorBroadcast broadcast(communicator);
      for (const int root : {1, 0}) {  // The second time with the same staging memory.
        if (communicator.rank() == root) own = tensors_of(root);
        broadcast.run(own, root);
        const std::vector<at::Tensor> expected = tensors_of(root);
        for (std::size_t i = 0; i < own.size(); ++i) {
          RANK_CHECK(own[i].scalar_type() == expected[i].scalar_type());
          RANK_CHECK(torch::equal(own[i], expected[i]));
        }
        RANK_CHECK(own[2].is_contiguous(at::MemoryFormat::ChannelsLast));
      }
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(error.empty());
    }
  }
}

TEST_CASE(
    "tensors come from the rank with the smallest priority bit by bit, whatever types they have",
    "[worker][ddp][communicator]") {
  const auto odd_tensors = [](int rank) {
    std::vector<at::Tensor> tensors = tensors_of(rank);
    tensors.push_back(torch::full({3}, rank + 1, torch::kInt8));
    tensors.push_back(torch::full({2, 2}, rank - 2, torch::kShort));
    tensors.push_back(torch::full({5}, c10::complex<double>(rank, -1.5), torch::kComplexFloat));
    tensors.push_back(torch::full({3}, c10::complex<double>(-rank, 0.5), torch::kComplexDouble));
    // Minus zero, and a number that is none with a payload.
    const std::vector<std::int64_t> bits{0x80000000, 0x7fc12345 + rank};
    tensors.push_back(torch::tensor(bits).to(torch::kInt).view(torch::kFloat));
    return tensors;
  };
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp, Wiring::TwoHosts}) {
    const auto errors = spawn({3, wiring}, [&](Communicator& communicator) {
      std::vector<at::Tensor> own = odd_tensors(communicator.rank());
      TensorBroadcast broadcast(communicator);
      for (const int from : {2, 0}) {  // The second time with the same staging memory.
        if (communicator.rank() == from) own = odd_tensors(from);
        broadcast.run_from_smallest(own, communicator.rank() == from ? -1 : communicator.rank());
        const std::vector<at::Tensor> expected = odd_tensors(from);
        for (std::size_t i = 0; i < own.size(); ++i) {
          RANK_CHECK(own[i].scalar_type() == expected[i].scalar_type());
          RANK_CHECK(torch::equal(own[i].contiguous().view(-1).view(torch::kByte),
                                  expected[i].contiguous().view(-1).view(torch::kByte)));
        }
        RANK_CHECK(own[2].is_contiguous(at::MemoryFormat::ChannelsLast));
      }
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(error.empty());
    }
  }
}

TEST_CASE("the sum of bool tensors is whether any rank has it, as over NCCL in PyTorch",
          "[worker][ddp][communicator]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const auto errors = spawn({3, wiring}, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      at::Tensor any = torch::tensor({true, rank == 1, rank != 1, false});
      all_reduce(communicator, any, ReduceOp::Sum);
      RANK_CHECK(any.scalar_type() == at::kBool);
      const at::Tensor bytes = torch::tensor({1, 1, 1, 0}, torch::kByte);
      RANK_CHECK(torch::equal(any.view(torch::kByte), bytes));
      at::Tensor all = torch::tensor({true, rank == 1});
      all_reduce(communicator, all, ReduceOp::Min);
      RANK_CHECK(torch::equal(all, torch::tensor({true, false})));
      at::Tensor count = torch::ones({2}, torch::kByte);
      all_reduce(communicator, count, ReduceOp::Sum);
      RANK_CHECK(torch::equal(count, torch::full({2}, 3, torch::kByte)));
      if (rank == 0) {
        const auto average = [&] { all_reduce(communicator, any, ReduceOp::Average); };
        RANK_CHECK(message_of<std::invalid_argument>(caught(average)) ==
                   "bools have no average: their sum tells whether any rank has true, and the "
                   "average of to(kFloat) how many have");
      }
      communicator.barrier();  // Nobody has called: the communicator is as it was.
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(error.empty());
    }
  }
}

TEST_CASE("a tensor whose memory cannot travel is refused with what to do about it",
          "[worker][collectives]") {
  ThreadWorld world(1);
  ThreadCommunicator alone(world, 0);
  const auto refusal = [&](const at::Tensor& tensor) {
    return testing::message_of<std::invalid_argument>(
        [&] { all_reduce(alone, tensor, ReduceOp::Sum); });
  };
  const std::string sparse = refusal(torch::eye(3).to_sparse());
  CHECK(sparse.find("layout Sparse, and memory travels: call to_dense()") != std::string::npos);
  const std::string gaps = refusal(torch::zeros({4, 4}).narrow(1, 0, 2));
  CHECK(gaps.find("gaps or overlaps in memory [4, 2]") != std::string::npos);
  CHECK(gaps.find("call contiguous() first") != std::string::npos);
}

TEST_CASE("a text of the root's is everybody's, and one without letters, too",
          "[worker][ddp][communicator]") {
  const auto errors = spawn({3, Wiring::TwoHosts}, [&](Communicator& communicator) {
    const std::string own = "of rank " + std::to_string(communicator.rank()) + std::string(1, '\0');
    RANK_CHECK(broadcast_text(communicator, own, at::kCPU, 1) == std::string("of rank 1\0", 10));
    const std::string none = communicator.rank() == 2 ? "" : own;
    RANK_CHECK(broadcast_text(communicator, none, at::kCPU, 2).empty());
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.empty());
  }
}

TEST_CASE("a text whose length a lost broadcast has left is an error, and not a text",
          "[worker][ddp]") {
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    communicator.lost = true;
    broadcast_text(communicator, "a text", at::kCPU, 0);
  });
  for (const auto& error : errors) {
    CHECK(message_of<CommunicatorError>(error) == "what was broadcast is garbage");
  }
}

TEST_CASE("what a lost broadcast has left becomes no weight of a rank that lives on",
          "[worker][ddp]") {
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    communicator.lost = true;
    const at::Tensor weight = torch::ones({3});
    try {
      TensorBroadcast(communicator).run({weight}, 0);
    } catch (const CommunicatorError&) {
      RANK_CHECK(at::equal(weight, torch::ones({3})));
      throw;
    }
  });
  for (const auto& error : errors) {
    CHECK(message_of<CommunicatorError>(error) == "what was broadcast is garbage");
  }
}

}  // namespace ddprun::worker
