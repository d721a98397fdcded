// Texts of different lengths as one all_gather of sizes and one of bytes.
#include "trainer/consistency/check_settings.h"

#include <algorithm>
#include <vector>

#include "trainer/consistency/run_settings.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

// Element r is rank r's text.
std::vector<std::string> gather_texts(worker::Communicator& communicator, torch::Device device,
                                      const std::string& text) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  const auto gather = [&](const torch::Tensor& own) {
    return worker::result_on_host(communicator, worker::all_gather(communicator, own.to(device)));
  };
  const torch::Tensor sizes = gather(torch::tensor({bytes}, torch::kInt64)).flatten();
  torch::Tensor mine = torch::zeros({sizes.max().item<std::int64_t>()}, torch::kUInt8);
  std::copy(text.begin(), text.end(), mine.data_ptr<std::uint8_t>());
  const torch::Tensor all = gather(mine).contiguous();
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < sizes.numel(); ++rank) {
    const auto* const first = all.data_ptr<std::uint8_t>() + rank * mine.numel();
    texts.emplace_back(first, first + sizes[rank].item<std::int64_t>());
  }
  return texts;
}

}  // namespace

void check_settings(worker::Communicator& communicator, torch::Device device,
                    const std::string& text) {
  if (communicator.world_size() == 1) return;
  const std::string difference = settings_difference(gather_texts(communicator, device, text));
  if (difference.empty()) return;
  communicator.barrier();  // No rank leaves while another still reads from it.
  throw UsageError(difference);
}

}  // namespace ddprun::trainer
