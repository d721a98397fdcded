// Copies of tensors as they are at one moment, in memory that is used again for the next moment.
//
// Fresh memory costs several times what a copy costs, because the kernel hands it out page by page;
// with memory that has been used before, 205 MB (ResNet-50 with momentum) are one memcpy.
#pragma once

#include <c10/core/Event.h>

#include <cstddef>
#include <optional>

#include "trainer/formats/safetensors.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class TensorSnapshot {
 public:
  // Makes and touches memory for that many bytes; page-locked when the tensors will come from a
  // GPU, so that they are copied without waiting.
  void reserve(std::size_t bytes, bool from_gpu);

  // Copies with the same names, shapes and strides on the CPU; what occurs twice is copied once.
  // They share this object's memory and are valid until the next take(). From a GPU they are queued
  // on the current stream, before whatever changes the tensors next: call wait_for_device() before
  // reading them.
  NamedTensors take(const NamedTensors& tensors);

  // From any thread.
  void wait_for_device();

 private:
  torch::Tensor memory_;  // Bytes.
  std::optional<c10::Event> copied_;
};

// What take() needs for these tensors.
std::size_t snapshot_bytes(const NamedTensors& tensors);

}  // namespace ddprun::trainer
