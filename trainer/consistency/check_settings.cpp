// All ranks come to the same difference, and leave together.
#include "trainer/consistency/check_settings.h"

#include "trainer/consistency/gather_texts.h"
#include "trainer/consistency/run_settings.h"

namespace ddprun::trainer {
void check_settings(worker::Communicator& communicator, torch::Device device,
                    const std::string& text) {
  if (communicator.world_size() == 1) return;
  const std::string difference = settings_difference(gather_texts(communicator, device, text));
  if (difference.empty()) return;
  communicator.barrier();  // No rank leaves while another still reads from it.
  throw UsageError(difference);
}

}  // namespace ddprun::trainer
