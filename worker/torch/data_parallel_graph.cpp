// One node joins replicas that have graphs of their own, one sums up copies within one graph.
#include "worker/torch/data_parallel_graph.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "worker/torch/autograd_node.h"

namespace ddprun::worker {
namespace {

using torch::autograd::variable_list;

void add_to(at::Tensor& sum, const at::Tensor& gradient, bool& own_memory) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = gradient;
  } else if (own_memory) {
    sum.add_(gradient);
  } else {  // What a replica's backward returned may be memory that others see too.
    sum = at::add(sum, gradient);
    own_memory = true;
  }
}

// What the replicas computed would be taken for constants.
void refuse_second_derivatives() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "second derivatives through DataParallel are not there: call backward without "
              "create_graph, or use the module alone");
}

// The sums leave as gradients of the module's own parameters. To write them there at the end of
// backward was ruled out: hooks on parameters would not have seen them.
class JoinedBackward : public torch::autograd::Node {
 public:
  JoinedBackward(std::shared_ptr<ReplicaThreads> threads, ReplicaOutputs outputs)
      : threads_(std::move(threads)), replicas_(std::move(outputs)) {}

  std::string name() const override { return "DataParallelBackward"; }

  variable_list apply(variable_list&& gradients) override {
    refuse_second_derivatives();
    TORCH_CHECK(!replicas_.outputs.empty(),
                "backward ran a second time through DataParallel::forward, whose graph is gone: "
                "call forward again, or backward with retain_graph");
    const std::size_t count = replicas_.outputs.size();
    const std::vector<at::Tensor> parts = split(gradients.at(0));
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    std::vector<variable_list> results(count);
    threads_->run(count, [&](std::size_t i) {
      std::vector<at::Tensor> wanted = replicas_.inputs[i];
      if (replicas_.parts[i].requires_grad()) wanted.push_back(replicas_.parts[i]);
      if (!parts[i].defined() || wanted.empty() || !replicas_.outputs[i].requires_grad()) return;
      results[i] = torch::autograd::grad({replicas_.outputs[i]}, wanted, {parts[i]}, keep_graph,
                                         /*create_graph=*/false, /*allow_unused=*/true);
    });
    return sums(results);
  }

  void release_variables() override { replicas_ = {}; }

 private:
  std::vector<at::Tensor> split(const at::Tensor& gradient) const {
    std::vector<at::Tensor> parts(replicas_.outputs.size());
    std::int64_t start = 0;
    for (std::size_t i = 0; gradient.defined() && i < parts.size(); ++i) {
      const std::int64_t size = replicas_.outputs[i].size(0);
      parts[i] = gradient.narrow(0, start, size);
      start += size;
    }
    return parts;
  }

  // The gradient of the input, then those of the parameters: summed in the order of the replicas,
  // by all threads at once.
  variable_list sums(std::vector<variable_list>& results) {
    const std::size_t parameters = replicas_.inputs.front().size();
    variable_list all(1 + parameters);
    all[0] = input_gradient(results, parameters);
    threads_->run(results.size(), [&](std::size_t thread) {
      const at::NoGradGuard no_grad;
      for (std::size_t k = thread; k < parameters; k += results.size()) {
        bool own_memory = false;
        for (variable_list& result : results) {
          if (!result.empty()) add_to(all[1 + k], std::exchange(result[k], {}), own_memory);
        }
      }
    });
    return all;
  }

  at::Tensor input_gradient(const std::vector<variable_list>& results,
                            std::size_t parameters) const {
    if (!replicas_.parts.front().requires_grad()) return {};
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const bool there = results[i].size() > parameters && results[i].back().defined();
      parts.push_back(there ? results[i].back() : at::zeros_like(replicas_.parts[i]));
    }
    return at::cat(parts);
  }

  std::shared_ptr<ReplicaThreads> threads_;
  ReplicaOutputs replicas_;
};

class SumOfCopies : public torch::autograd::Node {
 public:
  explicit SumOfCopies(at::Device device) : device_(device) {}

  std::string name() const override { return "DataParallelSumBackward"; }

  variable_list apply(variable_list&& gradients) override {
    refuse_second_derivatives();
    at::Tensor sum;
    bool own_memory = false;
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined()) add_to(sum, gradient.to(device_), own_memory);
    }
    return {sum};
  }

 private:
  at::Device device_;
};

}  // namespace

at::Tensor join_outputs(const std::shared_ptr<ReplicaThreads>& threads, ReplicaOutputs outputs,
                        const at::Tensor& input, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> values;
  bool any = false;
  for (const at::Tensor& output : outputs.outputs) {
    values.push_back(output.detach());
    any = any || output.requires_grad();
  }
  at::Tensor joined = at::cat(values);
  if (!any) return joined;
  auto node = make_node<JoinedBackward>(threads, std::move(outputs));
  node->set_next_edges(torch::autograd::collect_next_edges(input, parameters));
  torch::autograd::set_history(joined, node);
  return joined;
}

void connect_copies(const at::Tensor& parameter, const std::vector<at::Tensor>& copies) {
  auto node = make_node<SumOfCopies>(parameter.device());
  // The node's stream is that of its first input. Of a copy's GPU it would not be where the sum
  // is made, and LibTorch warns that the parameter's gradient comes from another stream.
  node->add_input_metadata(parameter);
  node->set_next_edges(torch::autograd::collect_next_edges(parameter));
  for (const at::Tensor& copy : copies) torch::autograd::set_history(copy, node);
}

}  // namespace ddprun::worker
