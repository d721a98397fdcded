// The words themselves stay: the launcher's own advice goes by them.
#include "trainer/failure_text.h"

#include <fmt/format.h>

#include <new>
#include <string_view>
#include <system_error>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {
namespace {

// On the host. LibTorch has no type of its own for it, and for a GPU's there is gpu_memory.h.
bool is_out_of_memory(const std::exception& error, const std::string& text) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("DefaultCPUAllocator: ") != std::string::npos;
}

// Of std::thread, which says nothing but the system's word for `why`.
bool got_no_thread(const std::exception& error, const std::string& text, std::errc why) {
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  return of_system != nullptr && of_system->code().message() == text && of_system->code() == why;
}

// cudaGetErrorString()'s for what a GPU failed of. Whichever call comes next meets it, and each one
// after that: which it was says nothing of the cause.
constexpr std::string_view kernel_failures[] = {"an illegal memory access was encountered",
                                                "an illegal instruction was encountered",
                                                "misaligned address",
                                                "invalid program counter",
                                                "operation not supported on global/shared address",
                                                "device-side assert triggered",
                                                "unspecified launch failure",
                                                "the launch timed out and was terminated"};
constexpr std::string_view defects[] = {
    "uncorrectable ECC error encountered", "uncorrectable NVLink error", "hardware stack error",
    "Invalid access of peer GPU memory over nvlink or a hardware error"};

template <std::size_t count>
std::string_view word_of(const std::string_view (&words)[count], std::string_view text) {
  for (const std::string_view word : words) {
    if (text.find(word) != text.npos) return word;
  }
  return {};
}

// "": it has not. What a communicator says is told as it is: its GPU may be another rank's.
std::string text_of_failed_gpu(const std::exception& error, std::string_view text) {
  if (dynamic_cast<const worker::CommunicatorError*>(&error) != nullptr) return "";
  if (const auto defect = word_of(defects, text); !defect.empty()) {
    return fmt::format(
        "this worker's GPU has failed: {}. It is defective, and no call of this process can use it "
        "any more: take this node out of the job (nvidia-smi -q -d ECC; dmesg | grep Xid)",
        defect);
  }
  const auto failure = word_of(kernel_failures, text);
  if (failure.empty()) return "";
  return fmt::format(
      "this worker's GPU has failed in work that it was given earlier: {}. No call of this process "
      "can use it any more, but a new process can. With CUDA_LAUNCH_BLOCKING=1 the error comes "
      "where its kernel is queued; an Xid of 48, 79, 94 or 95 (dmesg | grep Xid) says that the GPU "
      "is defective",
      failure);
}

}  // namespace

std::string failure_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
  if (is_out_of_memory(error, text)) {
    return fmt::format(
        "the memory of this host, or what this process may have of it, is not enough ({}): give a "
        "smaller --batch-size (with --accumulate the step stays as large), start fewer workers "
        "here, or raise the limit (ulimit -v, the container's or the scheduler's)",
        text);
  }
  if (got_no_thread(error, text, std::errc::operation_not_permitted)) {
    return fmt::format(
        "cannot start another thread ({}): this container's seccomp rules refuse clone3, by which "
        "threads are started, as those of Docker before 20.10.10 do: update Docker and libseccomp, "
        "or docker run --security-opt seccomp=unconfined",
        text);
  }
  if (got_no_thread(error, text, std::errc::resource_unavailable_try_again)) {
    return fmt::format(
        "cannot start another thread ({}): raise the limit of processes and threads (ulimit -u, "
        "the container's pids limit), or give fewer --workers",
        text);
  }
  const std::string of_gpu = text_of_failed_gpu(error, text);
  return of_gpu.empty() ? text : of_gpu;
}

std::string with_rank(const worker::WorkerEnv& env, const std::string& what) {
  const std::string rank = fmt::format("rank {}: ", env.rank);
  // "rank 1: ..." and "rank 1 of 4 could not ..." say it themselves.
  const bool says_rank = env.world_size == 1 || what.starts_with(rank) ||
                         what.starts_with(fmt::format("rank {} ", env.rank));
  return says_rank ? what : rank + what;
}

}  // namespace ddprun::trainer
