// Workers and their GPUs, as a table: no GPU is needed for it.
#include "trainer/device/gpu_places.h"

#include "tests/testing/catch.h"

using namespace ddprun::trainer;
using Gpus = std::vector<int>;

TEST_CASE("14.24: each worker has the GPUs of its place, or those that --gpu-ids names for it",
          "[trainer][gpus]") {
  CHECK(gpus_of({}, 0) == Gpus{0});
  CHECK(gpus_of({}, 3) == Gpus{3});
  CHECK(gpus_of({.data_parallel = 2}, 1) == Gpus{2, 3});
  CHECK(gpus_of({.gpu_ids = {5, 2, 7}}, 0) == Gpus{5});
  CHECK(gpus_of({.gpu_ids = {5, 2, 7}}, 2) == Gpus{7});
  CHECK(gpus_of({.gpu_ids = {3, 1, 0, 2}, .data_parallel = 2}, 1) == Gpus{0, 2});
}

TEST_CASE("14.24: GPUs that are not there, or too few, are named", "[trainer][gpus]") {
  CHECK(gpu_problem({}, 1, 2).empty());
  CHECK(gpu_problem({}, 2, 2) == "local rank 2 has no GPU of its own: there are 2");
  CHECK(gpu_problem({.data_parallel = 2}, 1, 4).empty());
  CHECK(gpu_problem({.data_parallel = 2}, 1, 3) ==
        "local rank 1 has no 2 GPUs of its own: there are 3");
  CHECK(gpu_problem({.gpu_ids = {3, 1}}, 1, 4).empty());
  CHECK(gpu_problem({.gpu_ids = {3, 1}}, 0, 3) == "--gpu-ids names GPU 3, but there are 3");
  CHECK(gpu_problem({.gpu_ids = {3, 1}}, 2, 8) ==
        "--gpu-ids names 2 GPUs, too few for local rank 2 with 1");
  CHECK(gpu_problem({.gpu_ids = {3, 1, 0}, .data_parallel = 2}, 1, 8) ==
        "--gpu-ids names 3 GPUs, too few for local rank 1 with 2");
}

TEST_CASE("what is said of GPUs that are too few can be done", "[trainer][gpus]") {
  CHECK(gpu_advice({}, 2, "") ==
        "start as many workers as there are GPUs (ddprun --nproc-per-node gpu)");
  CHECK(gpu_advice({}, 2, "0,1") == gpu_advice({}, 2, ""));
  CHECK(gpu_advice({.data_parallel = 2}, 8, "") ==
        "start at most 4 workers here (ddprun --nproc-per-node 4), each with its 2 GPUs");
  CHECK(gpu_advice({.data_parallel = 4}, 2, "") == "--data-parallel can be 2 at most");
  CHECK(gpu_advice({.gpu_ids = {3, 1}}, 8, "") ==
        "start at most 2 workers here (ddprun --nproc-per-node 2), each with its GPU");
  CHECK(gpu_advice({}, 1, "MIG-a,MIG-b").find("--virtual-local-rank") != std::string::npos);
  CHECK(gpu_advice({}, 1, "MIG-a") == gpu_advice({}, 2, ""));
}

TEST_CASE("with --share-gpu all workers have the first GPU, and NCCL takes each for a host",
          "[trainer][gpus]") {
  CHECK(gpus_of({.share = true}, 1) == Gpus{0});
  CHECK(gpus_of({.gpu_ids = {3, 1}, .share = true}, 5) == Gpus{3});
  CHECK(gpu_problem({.share = true}, 7, 1).empty());
  CHECK(gpu_problem({.share = true}, 0, 0) == "local rank 0 has no GPU of its own: there are 0");
  CHECK(gpu_problem({.gpu_ids = {3}, .share = true}, 1, 4).empty());
  CHECK(gpu_problem({.gpu_ids = {4}, .share = true}, 1, 4) ==
        "--gpu-ids names GPU 4, but there are 4");

  const auto first = shared_gpu_variables(0), second = shared_gpu_variables(1);
  REQUIRE(first.size() == second.size());
  CHECK(first[0] == std::pair<std::string, std::string>{"NCCL_HOSTID", "h0"});
  CHECK(second[0] == std::pair<std::string, std::string>{"NCCL_HOSTID", "h1"});
  CHECK(std::equal(first.begin() + 1, first.end(), second.begin() + 1));
}
