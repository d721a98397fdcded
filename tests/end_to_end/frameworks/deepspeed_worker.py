"""DeepSpeed's engine with ZeRO, stage 1. Insists on --local_rank, as scripts for its own launcher do."""
import argparse

import deepspeed
import torch

from small_task import batches, done, may_die, network

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
arguments = parser.parse_args()

deepspeed.init_distributed("gloo")
model = network()
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                  config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
                                          "zero_allow_untested_optimizer": True})
assert engine.local_rank == arguments.local_rank
for epoch in range(2):
    for images, labels in batches(engine.global_rank, engine.world_size):
        engine.backward(torch.nn.functional.cross_entropy(engine(images), labels))
        engine.step()
        may_die(late=epoch == 1)
done(engine.global_rank, engine.world_size, arguments.local_rank, model)
