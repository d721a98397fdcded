// Arguments as LibTorch 2.11 has them; of another version's kernels by these names nothing is
// known.
#include "tests/fake_cuda/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ddprun::fake_cuda {
namespace {

constexpr std::string_view filling = "vectorized_elementwise_kernel", filled = "FillFunctorI",
                           joining = "CatArrayBatchedCopy", joined = "OpaqueTypeILj",
                           of_one_dimension = "EEEjLi1E",
                           loss = "nll_loss_forward_reduce_cuda_kernel_2dIf";

bool has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// What follows `part` in the name.
char after(std::string_view name, std::string_view part) {
  return name[name.find(part) + part.size()];
}

std::size_t bytes_of_type(char mangled) {
  switch (mangled) {
    case 'd':
    case 'l':
      return 8;
    case 'f':
    case 'i':
      return 4;
    case 'N':  // c10::Half and c10::BFloat16.
    case 's':
      return 2;
    default:
      return 1;
  }
}

Work fill(std::size_t bytes, void* const* arguments) {
  const auto count = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  const auto* const value = static_cast<const char*>(arguments[1]);
  return [to = *static_cast<char* const*>(arguments[2]), count,
          value = std::vector<char>(value, value + bytes)] {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(to + i * value.size(), value.data(), value.size());
    }
  };
}

struct Inputs {  // CatArrInputTensorMetadata, of one dimension.
  const char* first[128];
  std::uint32_t offset[128], extent[128], elements[128];
};

Work join(std::size_t bytes, unsigned count, void* const* arguments) {
  return [=, to = *static_cast<char* const*>(arguments[0]),
          from = *static_cast<const Inputs*>(arguments[1])] {
    for (unsigned i = 0; i < count; ++i) {
      std::memcpy(to + from.offset[i] * bytes, from.first[i], from.elements[i] * bytes);
    }
  };
}

}  // namespace

Work work_of_kernel(std::string_view name, unsigned rows, void* const* arguments) {
  if (has(name, filling) && has(name, filled)) {
    return fill(bytes_of_type(after(name, filled)), arguments);
  }
  if (has(name, joining) && has(name, "_contig") && has(name, of_one_dimension)) {
    return join(static_cast<std::size_t>(after(name, joined) - '0'), rows, arguments);
  }
  if (has(name, loss)) {
    return [to = *static_cast<float* const*>(arguments[0])] { *to = 0; };
  }
  return {};
}

}  // namespace ddprun::fake_cuda
