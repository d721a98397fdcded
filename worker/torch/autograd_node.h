// Nodes of autograd's graph, as the LibTorch at hand owns them: std::shared_ptr until 2.12,
// c10::intrusive_ptr since 2.13.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace ddprun::worker {

using NodePointer = decltype(torch::autograd::Edge::function);

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace ddprun::worker
