// System calls that fail as no disk here does: the kernel answers them with an error for the
// calling thread alone, through a seccomp filter that ends with the thread.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace ddprun::testing {

// A call by its number (__NR_read), with `value` as its argument of this index.
struct FailingCall {
  int number = 0;
  std::optional<int> argument = {};  // Nothing: whatever its arguments are.
  std::uint32_t value = 0;
};

// False: this kernel or container has no such filters, and `body` was not called. What `body`
// throws is thrown here.
inline bool with_failing_calls(const std::vector<FailingCall>& calls, int error,
                               const std::function<void()>& body) {
  const auto number = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
  const auto arguments = static_cast<std::uint32_t>(offsetof(seccomp_data, args));
  std::vector<sock_filter> program;
  const auto load = [&](std::uint32_t at) {
    program.push_back({BPF_LD | BPF_W | BPF_ABS, 0, 0, at});
  };
  const auto skip_unless = [&](std::uint32_t value, std::uint8_t steps) {
    program.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, steps, value});
  };
  const auto answer = [&](std::uint32_t what) { program.push_back({BPF_RET | BPF_K, 0, 0, what}); };
  for (const FailingCall& call : calls) {
    load(number);
    skip_unless(static_cast<std::uint32_t>(call.number), call.argument ? 3 : 1);
    if (call.argument) {
      // The low half of the argument, as a little-endian machine has it.
      load(arguments + 8 * static_cast<std::uint32_t>(*call.argument));
      skip_unless(call.value, 1);
    }
    answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  }
  answer(SECCOMP_RET_ALLOW);
  bool filtered = false;
  std::exception_ptr thrown;
  std::thread([&] {
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    filtered = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
    if (!filtered) return;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return filtered;
}

}  // namespace ddprun::testing
