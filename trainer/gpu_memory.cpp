// Bytes of tensors, the allocator's statistics and CUDA's own, for the decisions of memory_plan.
#include "trainer/gpu_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "trainer/replicated_classifier.h"
#include "trainer/report/device_memory.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::trainer {
namespace {

struct DriverMemory {
  std::int64_t free = 0, total = 0;
};

// Of the whole device, other processes' part included.
std::optional<DriverMemory> driver_memory(torch::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const auto [free, total] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  return DriverMemory{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

// The peers are not in the probe: batches are normalised without theirs.
void normalize_alone(TrainingJob& job) {
  if (auto* replicated = dynamic_cast<ReplicatedClassifier*>(job.parallel->module().get())) {
    replicated->synchronize_batch_norms({});
  } else {
    worker::synchronize_batch_norms(*job.model, {});
  }
}

struct Peak {
  std::int64_t allocated = 0;
  // With the gaps between tensors, which a recording keeps; and as if none of before were used.
  std::int64_t reserved = 0;
};

// Of the probe: what forward and backward of so many images take at most.
Peak peak_of(TrainingJob& job, const torch::Tensor& images, const torch::Tensor& labels) {
  auto* const allocator = c10::getDeviceAllocator(job.place.device.type());
  allocator->emptyCache();
  allocator->resetPeakStats(job.place.device.index());
  const DeviceMemory before = *device_memory(job.place.device);
  // Nor are gradients reduced.
  const worker::DistributedDataParallelBase::NoSync alone(*job.parallel);
  torch::Tensor loss;
  {
    const AutocastGuard autocast = job.precision->autocast();
    const torch::Tensor logits = job.parallel->module()->forward(images);
    loss = torch::cross_entropy_loss(logits.to(torch::kFloat32), labels);
  }
  loss.backward();
  const DeviceMemory after = *device_memory(job.place.device);
  return {after.allocated_peak_bytes - before.allocated_bytes,
          after.reserved_peak_bytes - before.allocated_bytes};
}

// As many as `count`, which may be more than there are.
torch::Tensor probe_of(const torch::Tensor& given, std::int64_t count) {
  if (count <= given.size(0)) return given.narrow(0, 0, count);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] = count;
  return torch::empty(sizes, given.options(), given.suggest_memory_format()).zero_();
}

// Images of the steps that are done without the graph, whose memory lies beside it: an epoch's last
// batch; and a validation, which keeps no activations: a quarter of a step is set aside for it.
std::int64_t images_beside_graph(const TrainingJob& job, std::int64_t images) {
  const std::int64_t step = images * (job.plan.batch_size / job.plan.micro_batch_size);
  const std::int64_t last = std::min(images, job.plan.samples_per_worker % step);
  return std::max(last, job.validation_set ? (images + 3) / 4 : 0);
}

// Whether a recording of so many images has room. It never gives back what lies between its tensors
// (outside of one the allocator does, before it calls a GPU full), so that is tried.
bool fits_recorded(TrainingJob& job, const torch::Tensor& images, const torch::Tensor& labels,
                   std::int64_t count, std::int64_t free_bytes) try {
  const torch::Tensor probe = probe_of(images, count), answers = probe_of(labels, count);
  const std::int64_t beside = images_beside_graph(job, count);
  const std::int64_t eager =
      beside == 0 ? 0
                  : peak_of(job, probe.narrow(0, 0, beside), answers.narrow(0, 0, beside)).reserved;
  // Gradients are its own, too, and what a batch lies in.
  const std::int64_t recorded = peak_of(job, probe, answers).reserved +
                                lasting_memory(job).gradients +
                                static_cast<std::int64_t>(probe.nbytes());
  return recorded + eager <= free_bytes - free_bytes / 10;
} catch (const c10::Error&) {  // Not even without a recording.
  return false;
}

}  // namespace

LastingMemory lasting_memory(const TrainingJob& job) {
  LastingMemory memory;
  std::int64_t model = 0;
  for (const torch::Tensor& parameter : job.model->parameters()) {
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    model += bytes;
    memory.gradients += bytes;
    if (job.options.momentum != 0) memory.momentum += bytes;
    // What travels in half as many bytes is a copy.
    const bool copied = job.options.gradient_type != GradientType::Parameters;
    if (copied && job.env.world_size > 1) memory.gradients += bytes / 2;
    // What has not travelled yet.
    const bool errors = job.options.power_sgd && parameter.dim() > 1;
    if (errors && job.env.world_size > 1) memory.gradients += bytes;
    // Those of batch norms have none, and are of one dimension, as the biases that hardly count.
    if (job.kernels.copies && parameter.dim() > 1) memory.weights += bytes / 2;
  }
  for (const torch::Tensor& buffer : job.model->buffers()) {
    model += static_cast<std::int64_t>(buffer.nbytes());
  }
  memory.weights += model;
  if (job.average) memory.average = model;
  for (const auto& set : {&job.resident_training_set, &job.resident_validation_set}) {
    if (*set) memory.data += (*set)->bytes();
  }
  return memory;
}

void tell_lasting_memory(TrainingJob& job) {
  const auto driver = driver_memory(job.place.device);
  job.reporter->line(fmt::format(
      "Memory of {}{}: {}", job.place.device.str(),
      driver ? fmt::format(" ({}, {} free)", bytes_text(driver->total), bytes_text(driver->free))
             : "",
      lasting_text(lasting_memory(job))));
}

void tell_step_memory(TrainingJob& job) {
  const auto memory = device_memory(job.place.device);
  if (!memory) return;
  const std::int64_t step = memory->allocated_peak_bytes - memory->allocated_bytes;
  job.reporter->line(fmt::format(
      "Memory of a step of {} images: {} at its peak ({} an image); LibTorch holds {}",
      job.plan.micro_batch_size, bytes_text(step), bytes_text(step / job.plan.micro_batch_size),
      bytes_text(memory->reserved_bytes)));
}

std::string explain_out_of_memory(TrainingJob& job, const torch::Tensor& images,
                                  const torch::Tensor& labels, const std::string& why,
                                  OutOfMemory cause) {
  if (job.options.sync_batch_norm) normalize_alone(job);
  const std::int64_t tried = std::min(job.plan.micro_batch_size, images.size(0));
  const auto measured = measure_batches(tried, [&](std::int64_t count) {
    return peak_of(job, images.narrow(0, 0, count), labels.narrow(0, 0, count)).allocated;
  });
  if (!measured && cause == OutOfMemory::Likely) {
    return fmt::format(
        "{}: cuDNN found no way to compute a convolution, since the GPU's memory is full (give a "
        "smaller --batch-size) or since cuDNN, the driver and the GPU do not go together",
        why);
  }
  const LastingMemory lasting = lasting_memory(job);
  std::int64_t free_bytes = 0;
  if (measured) {
    c10::getDeviceAllocator(job.place.device.type())->emptyCache();
    if (const auto driver = driver_memory(job.place.device)) {
      free_bytes = driver->free;
    }
    // The first update makes it, and has not come yet.
    if (job.optimizer->momentum_buffers().empty()) {
      free_bytes = std::max<std::int64_t>(0, free_bytes - lasting.momentum);
    }
  }
  if (!job.options.cuda_graph) return out_of_memory_text(why, tried, lasting, measured, free_bytes);
  // An epoch's last batch may be what had no room any more, beside the graph of a whole one.
  return out_of_memory_text(why, job.plan.micro_batch_size, lasting, measured, free_bytes,
                            [&](std::int64_t count) {
                              return fits_recorded(job, images, labels, count, free_bytes);
                            }) +
         ". With --cuda-graph an epoch's smaller last batch and a validation take memory beside "
         "the recording, which is counted";
}

}  // namespace ddprun::trainer
