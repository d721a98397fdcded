// What a bucket does where no hook decides otherwise.
#include "worker/torch/communication_hook.h"

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {

void GradientBucket::all_reduce(Communicator& communicator, Stream stream) const {
  communicator.all_reduce(values.data_ptr(), static_cast<std::size_t>(values.numel()),
                          data_type_of(values.scalar_type(), "a bucket"), op, stream);
}

}  // namespace ddprun::worker
