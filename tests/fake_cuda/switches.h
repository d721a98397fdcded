// How a test tells the fake libraries to misbehave: by environment variables, since what is under
// test lies between the test and them. Most concern one rank, as ranks may be threads of one
// process:
//
//   FAKE_CUDA_DEVICES=N            so many GPUs; 8 when not set
//   FAKE_CUDA_MEMORY=BYTES         of each GPU; 80 GiB when not set
//   FAKE_CUDA_TELL=1               at its end a rank says which GPUs it had a context on, as bits
//   FAKE_CUDA_STALL=N              after N pieces of work the device takes up none any more
//   FAKE_CUDA_QUEUE=N              a stream holds so many pieces; whoever gives it more has to wait
//   FAKE_CUDA_FAULT=N              after N pieces of work each answer is an illegal memory access
//   FAKE_NCCL_VERSION=21805        what ncclGetVersion says
//   FAKE_NCCL_HANG_INIT=RANK       never comes to the others
//   FAKE_NCCL_SLOW=RANK:MS         each of its kernels takes so long
//   FAKE_NCCL_LOST=RANK:N          from its kernel N on (0 is the first) its peers are out of
//                                  reach: the kernel waits, and the asynchronous error tells
//   FAKE_NCCL_KILL=RANK:FUNCTION   SIGKILL on entering it, "ncclAllReduce"
//
// They are read when they matter, so that a case can set them, and a forked rank has its parent's.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace ddprun::fake_cuda {

inline std::optional<std::string> switched(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// Behind "RANK:"; nothing where the switch is off or another rank's.
inline std::optional<std::string> switched_for(const char* name, int rank) {
  const auto value = switched(name);
  if (!value) return std::nullopt;
  const std::string start = std::to_string(rank);
  if (*value == start) return "";
  if (value->rfind(start + ":", 0) != 0) return std::nullopt;
  return value->substr(start.size() + 1);
}

inline long number_of(const std::optional<std::string>& value, long otherwise) {
  return value ? std::strtol(value->c_str(), nullptr, 10) : otherwise;
}

}  // namespace ddprun::fake_cuda
