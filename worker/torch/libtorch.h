// The part of LibTorch that ddprun uses: tensors, autograd, and the few modules of its models.
//
// <torch/torch.h> brings data loaders, optimizers, serialisation and every module besides. Each
// unit that includes it instantiates those templates again, whether it calls them or not: 7 s of
// g++ 12 for an empty file, with a precompiled header, too. This file costs 3 s. A program outside
// of this tree may include either, in any order.
#pragma once

#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
