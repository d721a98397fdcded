// Everything that knows an optimizer's state is LibTorch's own save() and load(), by way of plain
// optimizers of some of the parameters: what a state consists of is each optimizer's secret.
#include "worker/torch/zero/zero_redundancy_optimizer.h"

#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/torch/model_agreement.h"
#include "worker/torch/tensor_collectives.h"
#include "worker/torch/zero/rank_shares.h"

namespace ddprun::worker {
namespace {

using torch::optim::Optimizer;
using ParamGroups = ZeroRedundancyOptimizer::ParamGroups;

std::string name_of(std::size_t group, std::size_t parameter) {
  return c10::str("parameter ", parameter, " of group ", group);
}

template <typename Visit>  // visit(group, parameter, tensor)
void for_each_parameter(const ParamGroups& groups, const Visit& visit) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<at::Tensor>& parameters = groups[g].params();
    for (std::size_t p = 0; p < parameters.size(); ++p) visit(g, p, parameters[p]);
  }
}

void check_parameters(const Communicator& communicator, const ParamGroups& groups) {
  std::set<const void*> seen;
  std::optional<at::Device> device;
  for_each_parameter(groups, [&](std::size_t g, std::size_t p, const at::Tensor& parameter) {
    const auto refuse = [&](const auto&... why) {
      throw std::invalid_argument(c10::str("ZeroRedundancyOptimizer: ", name_of(g, p), " ",
                                           parameter.sizes(), " ", why...));
    };
    if (!device) device = parameter.device();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) refuse("is there twice");
    if (parameter.layout() != at::kStrided || !parameter.is_non_overlapping_and_dense()) {
      refuse("has gaps or overlaps in memory, or is sparse: make it of contiguous()");
    }
    if (!is_for(communicator, parameter.device()) || parameter.device() != *device) {
      refuse("is on ", parameter.device(), ", and the first one on ", *device,
             ": all must be where the communicator's memory is (", communicator.description(), ")");
    }
  });
}

void check_optimizer(const Optimizer& made, const ParamGroups& groups) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&made) != nullptr) {
    throw std::invalid_argument(
        "ZeroRedundancyOptimizer: a step of LBFGS needs all parameters at once, and no rank has "
        "more than its share");
  }
  bool same = made.param_groups().size() == groups.size();
  for (std::size_t g = 0; same && g < groups.size(); ++g) {
    same = made.param_groups()[g].params().size() == groups[g].params().size();
  }
  if (same) return;
  throw std::invalid_argument(
      "ZeroRedundancyOptimizer: the optimizer that was made has other parameters than the groups "
      "it was to be made of: hand these to its constructor");
}

std::vector<std::string> describe(const Optimizer& optimizer, const ParamGroups& groups) {
  std::vector<std::string> lines{
      agreement_line("optimizer ", c10::demangle(typeid(optimizer).name()))};
  for_each_parameter(groups, [&](std::size_t g, std::size_t p, const at::Tensor& parameter) {
    lines.push_back(agreement_line(name_of(g, p), " ", parameter.scalar_type(), " ",
                                   parameter.sizes(), " strides ", parameter.strides()));
  });
  return lines;
}

std::string text_of(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

void load_text(Optimizer& optimizer, const std::string& text, at::Device device) {
  torch::serialize::InputArchive archive;
  archive.load_from(text.data(), text.size(), device);
  optimizer.load(archive);
}

// The state of `to`'s parameters, where `from` has one.
void move_state(Optimizer& from, Optimizer& to) {
  for (const auto& group : to.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = from.state().find(parameter.unsafeGetTensorImpl());
      if (found == from.state().end()) continue;
      to.state()[found->first] = std::move(found->second);
    }
  }
}

}  // namespace

struct ZeroRedundancyOptimizer::Checked {
  Checked(const ParamGroups& groups, Communicator& given, Make make_plain)
      : communicator(given), make(std::move(make_plain)) {
    check_parameters(communicator, groups);
    plain = make(groups);
    check_optimizer(*plain, groups);
    // Also of a rank that has none: its peers would wait for it.
    at::Device device(device_type_of(communicator));
    for_each_parameter(groups, [&](std::size_t, std::size_t, const at::Tensor& parameter) {
      device = parameter.device();
    });
    check_model_agreement(communicator, describe(*plain, groups), device);
  }

  Communicator& communicator;
  Make make;
  std::unique_ptr<Optimizer> plain;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const ParamGroups& groups,
                                                 Communicator& communicator, Make make)
    : ZeroRedundancyOptimizer(Checked(groups, communicator, std::move(make))) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters,
                                                 Communicator& communicator, Make make)
    : ZeroRedundancyOptimizer(ParamGroups{{std::move(parameters)}}, communicator, std::move(make)) {
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(Checked checked)
    : Optimizer(checked.plain->param_groups(), checked.plain->defaults().clone()),
      communicator_(checked.communicator),
      make_(std::move(checked.make)),
      shares_(static_cast<std::size_t>(communicator_.world_size())),
      exchange_(communicator_) {
  std::vector<std::int64_t> bytes;
  for_each_parameter(param_groups(), [&](std::size_t, std::size_t, const at::Tensor& parameter) {
    bytes.push_back(static_cast<std::int64_t>(parameter.nbytes()));
  });
  const std::vector<int> ranks = share_among_ranks(bytes, communicator_.world_size());
  rank_of_.resize(param_groups().size());
  auto next = ranks.begin();
  for_each_parameter(param_groups(), [&](std::size_t g, std::size_t, const at::Tensor& parameter) {
    shares_[static_cast<std::size_t>(*next)].push_back(parameter);
    rank_of_[g].push_back(*next++);
  });
  own_ = make_(groups_of(communicator_.rank()));
}

ParamGroups ZeroRedundancyOptimizer::groups_of(int rank) const {
  ParamGroups groups;
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    std::vector<at::Tensor> parameters;
    for (std::size_t p = 0; p < rank_of_[g].size(); ++p) {
      if (rank_of_[g][p] == rank) parameters.push_back(param_groups()[g].params()[p]);
    }
    groups.emplace_back(std::move(parameters), param_groups()[g].options().clone());
  }
  return groups;
}

void ZeroRedundancyOptimizer::pass_options() {
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    own_->param_groups()[g].set_options(param_groups()[g].options().clone());
  }
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  whole_.reset();
  pass_options();
  at::Tensor loss = own_->step(std::move(closure));
  exchange_.run(shares_);
  return loss;
}

void ZeroRedundancyOptimizer::consolidate(int to) {
  whole_.reset();
  const at::NoGradGuard no_grad;
  const bool here = communicator_.rank() == to;
  std::unique_ptr<Optimizer> whole = here ? make_(param_groups()) : nullptr;
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    const std::vector<at::Tensor>& share = shares_[static_cast<std::size_t>(rank)];
    if (share.empty()) continue;
    const at::Device device = share.front().device();
    const std::string text = broadcast_text(
        communicator_, rank == communicator_.rank() ? text_of(*own_) : "", device, rank);
    if (!here) continue;
    const std::unique_ptr<Optimizer> part = make_(groups_of(rank));
    load_text(*part, text, device);
    move_state(*part, *whole);
  }
  whole_ = std::move(whole);
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive& archive) const {
  if (!whole_) {
    throw std::logic_error(c10::str(
        "ZeroRedundancyOptimizer: rank ", communicator_.rank(),
        " has only its part of the state to save: call consolidate(", communicator_.rank(),
        ") on all ranks after the last step, or save on the rank to which it was brought"));
  }
  whole_->save(archive);
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  whole_.reset();
  const std::unique_ptr<Optimizer> whole = make_(param_groups());
  whole->load(archive);
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    param_groups()[g].set_options(whole->param_groups()[g].options().clone());
  }
  own_->state().clear();
  move_state(*whole, *own_);
  const std::vector<at::Tensor>& share = shares_[static_cast<std::size_t>(communicator_.rank())];
  if (share.empty()) return;
  // What was read lies where the archive was told to lay it, else on its writer's device.
  load_text(*own_, text_of(*own_), share.front().device());
}

}  // namespace ddprun::worker
