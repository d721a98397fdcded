// The words themselves stay: the launcher's own advice goes by them.
#include "trainer/failure_text.h"

#include <fmt/format.h>

#include <new>
#include <system_error>

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
  return text;
}

}  // namespace ddprun::trainer
