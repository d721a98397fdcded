// Ends training at the step whose loss is not a number, and says which samples it came from.
//
// On the CPU a loss is looked at in its step. On CUDA the host must not wait for it: the loss is
// copied beside the computation and looked at when it has come, a few steps later at most.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/training_error.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Where a loss comes from.
struct LossOrigin {
  std::int64_t step = 0;              // Of the run, this one included.
  std::int64_t epoch = 0;             // Those done; people count from 1.
  std::vector<std::int64_t> samples;  // Indices into the training set; empty = not known.
};

// What a person finds a sample by, such as its file; "" where there is nothing but its number.
using NameOfSample = std::function<std::string(std::int64_t)>;

// Writes the samples, one a line, its number first, into a file of its own in `folder`. Empty when
// there are none, or they could not be written: nothing may hide why training ended.
std::filesystem::path list_samples(const std::filesystem::path& folder, int rank,
                                   const LossOrigin& origin, const NameOfSample& name_of = nullptr);

// The words of the error: what to do, and where the samples are listed; the first ones themselves
// where no file has them.
std::string bad_loss_message(int rank, double loss, const LossOrigin& origin,
                             const std::filesystem::path& list = {});

// The step of such words, which may stand in others; nothing where there are none. A peer hears no
// more of an error than its text.
std::optional<std::int64_t> bad_loss_step(const std::string& message);

class LossGuard {
 public:
  // `folder`: asked where the samples of a bad loss are to be listed; null: nowhere.
  // `throw_if_ended`: asked before a loss is called bad, since the sums of a step that a lost peer
  // ended may be anything; null: there is no peer.
  // `name_of`: of the samples that are listed; null: numbers alone.
  // `on_look`: the device has come to a loss that was waited for.
  explicit LossGuard(int rank, std::function<std::filesystem::path()> folder = nullptr,
                     std::function<void()> throw_if_ended = nullptr, NameOfSample name_of = nullptr,
                     std::function<void()> on_look = nullptr)
      : rank_(rank),
        folder_(std::move(folder)),
        throw_if_ended_(std::move(throw_if_ended)),
        name_of_(std::move(name_of)),
        on_look_(std::move(on_look)) {}

  // loss: a scalar. Throws BadLossError for it (CPU) or for an earlier one (CUDA).
  void watch(const torch::Tensor& loss, LossOrigin origin);

  // Looks at all that are left, waiting for the device. Before a checkpoint, and at the end.
  void finish();

  // That it has looked at last; nothing before the first.
  std::optional<double> last() const { return last_; }

 private:
  struct Pending {
    torch::Tensor on_host;  // Pinned.
    c10::Event copied;
    LossOrigin origin;
  };
  void check(const torch::Tensor& loss, const LossOrigin& origin);
  void check_first();

  int rank_;
  std::function<std::filesystem::path()> folder_;
  std::function<void()> throw_if_ended_;
  NameOfSample name_of_;
  std::function<void()> on_look_;
  std::deque<Pending> pending_;
  std::optional<double> last_;
};

}  // namespace ddprun::trainer
