// Any bytes as the pickle of a file of torch.save with two storages. The archive around it is
// sound, so that its checksums keep no input from the pickle's reader.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/finding.h"
#include "tests/fuzz/stored_tensors.h"
#include "tests/trainer/formats/stored_zip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string pickle(reinterpret_cast<const char*>(data), size);
  ddprun::fuzz::check_torch_file(ddprun::trainer::stored_zip({{"f/data.pkl", pickle},
                                                              {"f/data/0", std::string(64, 'x')},
                                                              {"f/data/1", std::string(7, 'y')}}));
  return 0;
}
