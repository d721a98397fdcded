"""A LightningModule under Trainer(strategy="ddp")."""
import os

import lightning
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment

from small_task import batches, done, may_die, network


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_):
        may_die(late=self.current_epoch == 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


workers = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = lightning.Trainer(accelerator="cpu", devices=workers, num_nodes=int(os.environ["WORLD_SIZE"]) // workers, strategy="ddp",
                            max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False)
module = Module()
trainer.fit(module, batches())
# Or it would have started workers of its own.
assert isinstance(trainer.strategy.cluster_environment, TorchElasticEnvironment)
done(trainer.global_rank, trainer.world_size, trainer.local_rank, module.network)
