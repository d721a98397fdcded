// Texts of different lengths as one all_gather of sizes and one of bytes.
#include "trainer/consistency/gather_texts.h"

#include <algorithm>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {

std::vector<std::string> gather_texts(worker::Communicator& communicator, torch::Device device,
                                      const std::string& text) {
  if (communicator.world_size() == 1) return {text};
  const auto bytes = static_cast<std::int64_t>(text.size());
  const auto gather = [&](const torch::Tensor& own) {
    return worker::result_on_host(communicator, worker::all_gather(communicator, own.to(device)));
  };
  const torch::Tensor sizes = gather(torch::tensor({bytes}, torch::kInt64)).flatten();
  torch::Tensor mine = torch::zeros({sizes.max().item<std::int64_t>()}, torch::kUInt8);
  std::vector<std::string> texts(static_cast<std::size_t>(sizes.numel()));
  if (mine.numel() == 0) return texts;
  std::copy(text.begin(), text.end(), mine.data_ptr<std::uint8_t>());
  const torch::Tensor all = gather(mine).contiguous();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto row = static_cast<std::int64_t>(rank);
    const auto* const first = all.data_ptr<std::uint8_t>() + row * mine.numel();
    texts[rank].assign(first, first + sizes[row].item<std::int64_t>());
  }
  return texts;
}

}  // namespace ddprun::trainer
