// What a person reads where the machine has no more to give.
#include "trainer/failure_text.h"

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

using namespace ddprun::trainer;
using ddprun::testing::contains;

namespace {

// Of whatever the call throws.
template <typename Call>
std::string text_of_failing(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return failure_text(error);
  }
  return "it did not fail";
}

}  // namespace

TEST_CASE("an error's own words are told, without LibTorch's stack", "[trainer]") {
  CHECK(failure_text(std::runtime_error("the disk is gone")) == "the disk is gone");
  const std::string of_torch = text_of_failing([] { TORCH_CHECK(false, "no such layer"); });
  CHECK(of_torch == "no such layer");
}

TEST_CASE("memory that ran out on the host says what would fit", "[trainer]") {
  CHECK(contains(failure_text(std::bad_alloc()), "(std::bad_alloc): give a smaller --batch-size"));
#if !defined(__SANITIZE_ADDRESS__)  // Which ends a process that asks for so much.
  const std::string text = text_of_failing([] { torch::empty({std::int64_t{1} << 55}); });
  INFO(text);
  CHECK(contains(text, "DefaultCPUAllocator: can't allocate memory"));  // The launcher knows these.
  CHECK(contains(text, "): give a smaller --batch-size"));
#endif
}

TEST_CASE("a thread that cannot be started is called so", "[trainer]") {
  const auto none_left = std::make_error_code(std::errc::resource_unavailable_try_again);
  CHECK(failure_text(std::system_error(none_left)) ==
        "cannot start another thread (Resource temporarily unavailable): raise the limit of "
        "processes and threads (ulimit -u, the container's pids limit), or give fewer --workers");
  const auto refused = std::make_error_code(std::errc::operation_not_permitted);
  CHECK(contains(failure_text(std::system_error(refused)),
                 "(Operation not permitted): this container's seccomp rules refuse clone3"));
  // Of something else that says itself what it is.
  CHECK(failure_text(std::system_error(none_left, "cannot read it")) ==
        "cannot read it: Resource temporarily unavailable");
}

TEST_CASE("a GPU that failed is told as such, whichever call has met it", "[trainer]") {
  const std::string failed =
      "this worker's GPU has failed in work that it was given earlier: an illegal memory access "
      "was encountered. No call of this process can use it any more";
  const std::string of_torch = text_of_failing([] {
    TORCH_CHECK(false,
                "CUDA error: an illegal memory access was encountered\n"
                "CUDA kernel errors might be asynchronously reported at some other API call");
  });
  CHECK(of_torch.starts_with(failed));
  CHECK(!contains(of_torch, "asynchronously"));
  CHECK(failure_text(std::runtime_error("the SGD kernel could not be queued (1 blocks of 256 "
                                        "threads): cudaErrorIllegalAddress: an illegal memory "
                                        "access was encountered"))
            .starts_with(failed));
  CHECK(!contains(failure_text(std::runtime_error("the step could not be replayed as a CUDA graph: "
                                                  "CUDA error: misaligned address; leave "
                                                  "--cuda-graph out")),
                  "leave"));
  CHECK(
      contains(failure_text(std::runtime_error("CUDA error: uncorrectable ECC error encountered")),
               "take this node out of the job"));
  // It may be a peer's.
  const std::string of_peer =
      "all_reduce #3 failed on rank 0: rank 1 failed: an illegal memory access was encountered";
  CHECK(failure_text(ddprun::worker::CommunicatorError(of_peer)) == of_peer);
}
