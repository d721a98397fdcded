"""Transformers' Trainer, which saves every three steps and after a restart goes on from there."""
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from small_task import done, may_die


class MayDie(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        may_die(late=state.global_step >= 5)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
folder = sys.argv[1]
trainer = Trainer(model=model, train_dataset=Tokens(), callbacks=[MayDie()],
                  args=TrainingArguments(output_dir=folder, per_device_train_batch_size=4, max_steps=8, save_steps=3, seed=0,
                                         use_cpu=True, report_to=[], disable_tqdm=True))
last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
assert (last is not None) == (os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"), last
trainer.train(resume_from_checkpoint=last)
done(trainer.args.process_index, trainer.args.world_size, trainer.args.local_process_index, model)
