// Which kernels of ours a run uses, by its options and its device.
#include "trainer/options/own_kernels.h"

#include "tests/testing/catch.h"
#include "tests/trainer/options/parse_options.h"

using namespace ddprun::trainer;

namespace {

std::string kernels(std::vector<const char*> given, bool gpu) {
  return own_kernels_text(own_kernels(parse(std::move(given)).options.value(), gpu));
}

}  // namespace

TEST_CASE("a GPU has every kernel that applies, and the CPU those that are asked for",
          "[trainer][options]") {
  CHECK(kernels({}, true) == "fused-optimizer fused-norm fused-pool");
  CHECK(kernels({"--precision", "bf16"}, true) ==
        "fused-optimizer fused-norm fused-pool working-copies");
  CHECK(kernels({"--precision", "bf16"}, false).empty());
  CHECK(kernels({"--sync-bn"}, true) == "fused-optimizer fused-pool");
  CHECK(kernels({"--memory-format", "nchw"}, true) == "fused-optimizer");
  CHECK(kernels({"--optimizer", "lars"}, true) == "fused-norm fused-pool");
  for (const char* split : {"--shards", "--data-parallel"}) {
    CHECK(kernels({split, "2", "--precision", "bf16"}, true).empty());
  }
  CHECK(kernels({"--cuda-graph"}, false) == "fused-optimizer");  // Which needs it.
  const std::vector<const char*> all{"--fused-optimizer", "--fused-norm", "--fused-pool",
                                     "--precision",       "fp16",         "--working-copies"};
  CHECK(kernels(all, false) == "fused-optimizer fused-norm fused-pool working-copies");
  std::vector<const char*> none{"--no-fused-optimizer", "--no-fused-norm", "--no-fused-pool",
                                "--no-working-copies"};
  CHECK(kernels(none, true).empty());
  // The last word counts.
  std::vector<const char*> changed = all;
  changed.insert(changed.end(), none.begin(), none.end());
  CHECK(kernels(changed, true).empty());
  none.insert(none.end(), all.begin(), all.end());
  CHECK(kernels(none, false) == "fused-optimizer fused-norm fused-pool working-copies");
}
