"""Accelerate's own loop: Accelerator.prepare(), backward(), gather()."""
import torch
from accelerate import Accelerator

from small_task import batches, done, may_die, network

accelerator = Accelerator(cpu=True)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, batches())
for epoch in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        may_die(late=epoch == 1)
assert accelerator.gather(loss.detach().reshape(1)).numel() == accelerator.num_processes
done(accelerator.process_index, accelerator.num_processes, accelerator.local_process_index, model)
