// Every rank gets from each other one what that one alone has computed.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

class ShareExchange {
 public:
  // `gathered_bytes`: of the memory through which shares of all ranks pass, a piece of each at a
  // time. It comes from the communicator, at the first run() and for good.
  explicit ShareExchange(Communicator& communicator, std::int64_t gathered_bytes = 32 << 20)
      : communicator_(communicator), gathered_bytes_(gathered_bytes) {}

  // Overwrites shares[r] of all other ranks with rank r's, bit for bit. Collective: in the same
  // order, with the same dtypes, shapes and strides on all ranks; dense, and on one device.
  void run(const std::vector<std::vector<at::Tensor>>& shares);

 private:
  at::Tensor piece_memory(std::int64_t longest, at::Device device);

  Communicator& communicator_;
  std::int64_t gathered_bytes_;
  at::Tensor gathered_;  // Bytes; row r holds rank r's.
  at::Tensor own_;       // This rank's.
};

}  // namespace ddprun::worker
