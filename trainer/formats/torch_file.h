// Tensors out of files that Python's torch.save wrote.
#pragma once

#include <stdexcept>
#include <string_view>

#include "trainer/formats/safetensors.h"

namespace ddprun::trainer {

// The message is about "it", without a name.
class TorchFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The tensors of a state_dict in a file of torch.save (the zip format, since PyTorch 1.6), on the
// CPU. Also of a dict that holds one under "state_dict" or "model", as training scripts save it;
// their other entries are left out. Nothing that the pickle names is run. Throws TorchFileError.
NamedTensors parse_torch_file(std::string_view file);

}  // namespace ddprun::trainer
