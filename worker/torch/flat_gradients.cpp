// Regions, views and the one copy. Who owns a gradient's memory changes here alone: autograd's own
// tensor, the view of a region, or, once this object goes, a copy.
#include "worker/torch/flat_gradients.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "worker/torch/gradient_memory.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

void check_reducible(const Communicator& communicator, const NamedTensor& parameter,
                     const NamedTensor& first) {
  const std::string what = "parameter '" + parameter.name + "'";
  data_type_of(c10::toRealValueType(parameter.tensor.scalar_type()), what);
  if (parameter.tensor.layout() != at::kStrided) {
    throw std::invalid_argument(what + " is sparse, which data-parallel training cannot reduce");
  }
  if (!is_for(communicator, parameter.tensor.device())) {
    throw std::invalid_argument(what + " is on " + parameter.tensor.device().str() +
                                ", but the communicator is for " + communicator.description() +
                                ": move the module before it is wrapped");
  }
  if (parameter.tensor.device() != first.tensor.device()) {
    throw std::invalid_argument(what + " is on " + parameter.tensor.device().str() + ", but '" +
                                first.name + "' is on " + first.tensor.device().str() +
                                ": a communicator serves one device");
  }
  if (gradient_memory_is_lent(parameter.tensor)) {
    throw std::invalid_argument(
        what +
        " is one of a module that is wrapped already, and both would reduce its gradient: wrap one "
        "module that has both, or let the first wrapper go before");
  }
}

// Those that autograd gives a gradient: the parameter's own where they fill memory densely.
at::DimVector gradient_strides(const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) return c10::contiguous_strides(parameter.sizes());
  return at::DimVector(parameter.strides());
}

void copy_into(const at::Tensor& view, const at::Tensor& gradient) {
  if (view.numel() == 0) return;
  if (view.is_cpu() && view.strides() == gradient.strides() && !gradient.is_neg() &&
      !gradient.is_conj() && view.is_non_overlapping_and_dense()) {
    std::memcpy(view.data_ptr(), gradient.data_ptr(), view.nbytes());  // Saves the dispatch.
  } else {
    view.copy_(gradient.detach());
  }
}

}  // namespace

FlatGradients::FlatGradients(Communicator& communicator, std::vector<NamedTensor> parameters,
                             const BucketLimits& limits)
    : parameters_(std::move(parameters)), limits_(limits) {
  std::vector<at::ScalarType> types;  // Of the regions.
  if (!parameters_.empty()) device_ = parameters_.front().tensor.device();
  for (const NamedTensor& parameter : parameters_) {
    check_reducible(communicator, parameter, parameters_.front());
    const at::ScalarType type = parameter.tensor.scalar_type();
    const auto known = std::find(types.begin(), types.end(), type);
    const bool sparse = parameter.has_sparse_gradient;
    sizes_.push_back({sparse ? 0 : parameter.tensor.nbytes(),
                      static_cast<std::size_t>(known - types.begin()), sparse});
    if (known == types.end()) types.push_back(type);
  }
  const std::vector<std::size_t> bytes = region_bytes(sizes_);
  for (std::size_t region = 0; region < bytes.size(); ++region) {
    regions_.push_back(allocate_tensor(communicator, bytes[region], types[region], device_));
  }
  plan_ = plan_buckets(sizes_, reverse_order(sizes_.size()), limits_);
  make_views();
  reduced_.resize(parameters_.size());
  lent_.assign(parameters_.size(), false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    lend_gradient_memory(parameters_[i].tensor, *this, i);
  }
}

FlatGradients::~FlatGradients() {
  for (const NamedTensor& parameter : parameters_) {
    stop_lending_gradient_memory(parameter.tensor, *this);
  }
}

// A storage of its own tells by its count whether anybody else holds this gradient, and
// can be given other memory. Made from memory, it is no view in autograd's sense: a gradient must
// not be one, or Optimizer::zero_grad() fails to detach it.
at::Tensor FlatGradients::make_view(std::size_t i) const {
  const at::Tensor& region = regions_[sizes_[i].region];
  const at::Tensor& parameter = parameters_[i].tensor;
  void* const data = static_cast<char*>(region.data_ptr()) + plan_.places[i].offset;
  const auto keep = [region](void*) {};
  // Those of the view before: what was loaded into the parameter since may have others, but ranks
  // that add up their memory must all have it in one order.
  const at::DimVector strides =
      views_[i].defined() ? at::DimVector(views_[i].strides()) : gradient_strides(parameter);
  return at::from_blob(data, parameter.sizes(), strides, keep, region.options(), device_);
}

void FlatGradients::make_views() {
  views_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    views_[i] = plan_.places[i].bucket && !is_sparse(i) ? make_view(i) : at::Tensor();
  }
}

// Whoever holds the gradient of an earlier step, which zero_grad() has let go since, or one that
// was only lent: their tensors get memory of their own.
void FlatGradients::leave_to_holders(std::size_t i) {
  const at::Tensor& view = views_[i];
  if (view.use_count() == 1 && view.storage().use_count() == 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor held = std::exchange(views_[i], make_view(i));
  const at::Tensor copy = held.clone();
  held.storage().set_data_ptr(copy.storage().set_data_ptr({}));
}

bool FlatGradients::is_view(std::size_t i) const {
  const at::Tensor& gradient = parameters_[i].tensor.grad();
  return gradient.defined() && gradient.unsafeGetTensorImpl() == views_[i].unsafeGetTensorImpl();
}

// Also while it is only lent, in no_sync().
bool FlatGradients::lies_in_view(std::size_t i) const {
  const at::Tensor& gradient = parameters_[i].tensor.grad();
  return gradient.defined() && gradient.layout() == at::kStrided && !gradient.is_neg() &&
         !gradient.is_conj() && views_[i].defined() && gradient.data_ptr() == views_[i].data_ptr();
}

at::Tensor FlatGradients::lend(std::size_t i) {
  const at::Tensor& parameter = parameters_[i].tensor;
  if (lent_[i] || !views_[i].defined() || parameter.grad().defined()) return {};
  // Who borrows writes in the order that the parameter has now.
  if (views_[i].strides() != at::IntArrayRef(gradient_strides(parameter))) return {};
  lent_[i] = true;
  leave_to_holders(i);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::as_strided(views_[i], views_[i].sizes(), views_[i].strides());
}

void FlatGradients::adopt(std::size_t i) {
  lent_[i] = false;
  if (is_view(i)) return;
  at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
  if (is_sparse(i)) {
    if (gradient.defined()) check_type(i);
    return;
  }
  // The same memory under another tensor: it was lent, or somebody has detached it.
  if (lies_in_view(i)) {
    gradient = views_[i];
    return;
  }
  leave_to_holders(i);
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    views_[i].zero_();
    return;
  }
  check_type(i);
  copy_into(views_[i], gradient);
  gradient = views_[i];
}

// Of a gradient that is defined: what the plan has it to be.
void FlatGradients::check_type(std::size_t i) const {
  const at::Tensor& parameter = parameters_[i].tensor;
  const at::Tensor& gradient = parameter.grad();
  const std::string start = "the gradient of parameter '" + name(i) + "' is ";
  if (is_sparse(i) && gradient.layout() != at::kSparse) {
    throw std::invalid_argument(
        start +
        "dense, although its module is made with sparse(true): where it is used by another "
        "operation, too, make the module with sparse(false)");
  }
  if (!is_sparse(i) && gradient.layout() != at::kStrided) {
    throw std::invalid_argument(
        start +
        "sparse, and only that of an Embedding or EmbeddingBag made with sparse(true) is reduced: "
        "compute it dense");
  }
  if (gradient.scalar_type() == parameter.scalar_type() &&
      gradient.device() == parameter.device()) {
    return;
  }
  throw std::invalid_argument(start + gradient.toString() + " on " + gradient.device().str() +
                              ", expected a " + parameter.toString() + " on " +
                              parameter.device().str() +
                              " (move or convert the module before it is wrapped)");
}

void FlatGradients::forget(std::size_t i) { parameters_[i].tensor.mutable_grad().reset(); }

void FlatGradients::define(std::size_t i) {
  at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
  if (is_sparse(i)) {
    gradient = std::exchange(reduced_[i], {});
  } else if (!gradient.defined()) {
    gradient = views_[i];
  }
}

void FlatGradients::restore(std::size_t i, const at::Tensor& values) {
  if (is_sparse(i)) {
    reduced_[i] = values;
  } else {
    views_[i].copy_(values);
  }
}

std::optional<std::size_t> FlatGradients::sparse_gradient_of(std::size_t bucket) const {
  const std::size_t first = plan_.buckets[bucket].gradients.front();
  return is_sparse(first) ? std::optional(first) : std::nullopt;
}

void FlatGradients::reorder(const std::vector<std::size_t>& order) {
  BucketPlan plan = plan_buckets(sizes_, order, limits_);
  if (plan == plan_) return;
  const at::NoGradGuard no_grad;
  // Views of the new plan overlap those of the old one, and gradients must keep their values.
  release();
  plan_ = std::move(plan);
  hook_buckets_.clear();
  make_views();
  // Where gradients lay there may be gaps now, which travel, and whose numbers a hook would meet.
  for (at::Tensor& region : regions_) region.zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (plan_.places[i].bucket) adopt(i);
  }
}

void FlatGradients::clear(bool set_to_none) {
  const at::NoGradGuard no_grad;
  if (!set_to_none) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (views_[i].defined() && !lies_in_view(i)) leave_to_holders(i);
    }
    for (at::Tensor& region : regions_) region.zero_();
  }
  lent_.assign(parameters_.size(), false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (set_to_none) {
      gradient.reset();
    } else if (!gradient.defined()) {
      // Stays so: an optimizer skips it, where zeros would be decayed and given momentum.
      continue;
    } else if (views_[i].defined()) {
      gradient = views_[i];
    } else {
      gradient = at::zeros_like(gradient);
    }
  }
}

void FlatGradients::release() noexcept {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!views_[i].defined()) continue;
    try {
      leave_to_holders(i);
    } catch (const std::exception&) {
      // Out of memory: no gradient is better than one in memory that is gone.
      parameters_[i].tensor.mutable_grad().reset();
    }
  }
}

FlatGradients::Span FlatGradients::bucket(std::size_t index) const {
  const Bucket& bucket = plan_.buckets[index];
  const at::Tensor& region = regions_[bucket.region];
  // A complex number travels as two real ones: sums and averages of both are the same.
  const at::ScalarType type = c10::toRealValueType(region.scalar_type());
  const std::size_t element_bytes = c10::elementSize(type);
  return {static_cast<char*>(region.data_ptr()) + bucket.offset, bucket.bytes / element_bytes,
          data_type_of(type, "a bucket")};
}

// A network has hundreds of gradients, and a step on a GPU no time for as many new tensors.
const GradientBucket& FlatGradients::bucket_of_tensors(std::size_t index, ReduceOp op) {
  hook_buckets_.resize(plan_.buckets.size());
  std::optional<GradientBucket>& bucket = hook_buckets_[index];
  if (!bucket) bucket = make_bucket(index, op);
  return *bucket;
}

GradientBucket FlatGradients::make_bucket(std::size_t index, ReduceOp op) const {
  const Bucket& bucket = plan_.buckets[index];
  const at::Tensor& region = regions_[bucket.region];
  const auto element = [&region](std::size_t offset) {
    return static_cast<std::int64_t>(offset / region.element_size());
  };
  const at::Tensor values = region.narrow(0, element(bucket.offset), element(bucket.bytes));
  GradientBucket result{.index = index, .op = op};
  result.values = values.is_complex() ? at::view_as_real(values).flatten() : values;
  for (const std::size_t i : bucket.gradients) {
    const at::Tensor& view = views_[i];
    result.gradients.push_back(
        {i, region.as_strided(view.sizes(), view.strides(), element(plan_.places[i].offset))});
  }
  return result;
}

}  // namespace ddprun::worker
