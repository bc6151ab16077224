"""Trainings by Hugging Face's Trainer over a stream of ours, in processes that may be killed.

python -m tests.tensorrepo.integrations.trainer_training FOLDER:STEPS[:KILLED] ...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import tensorrepo as tr
from tensorrepo.integrations.transformers import RepositoryCallback
from tests.support.processes.killed import in_turn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x) - x.sum(1, keepdim=True)).square().mean()}


class StreamTrainer(Trainer):  # type: ignore[misc]
    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_dataset, batch_size=None)


class Epochs(TrainerCallback):  # type: ignore[misc]
    def __init__(self, batches: Any, killed: int | None) -> None:
        self.batches, self.killed = batches, killed

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.batches.set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, steps: int, killed: int | None = None) -> None:
    """Train to a step.

    Args:
        folder: has the repository, with a dataset, in ``repo``.
        steps: of the whole training.
        killed: the step after which the process kills itself.
    """
    torch.set_num_threads(1)
    torch.manual_seed(3)
    repository = tr.open(folder / "repo", author="Ada <ada@example.org>")
    points = repository.dataset("points")
    batches = points.stream(batch_size=8, seed=5, output="torch", transform=dict).torch()
    # Each attempt has a folder of its own, as on a machine that has none of the files before.
    output = folder / f"output-{os.getpid()}"
    arguments = TrainingArguments(
        output_dir=str(output), use_cpu=True, report_to=[], save_steps=3, logging_steps=1,
        disable_tqdm=True, learning_rate=1e-2, max_steps=steps, save_total_limit=1,
    )  # fmt: skip
    callback = RepositoryCallback(
        repository, "exp1", keep=tr.RetentionPolicy(last=2), system_seconds=None
    )
    trainer = StreamTrainer(
        Net(), arguments, train_dataset=batches, callbacks=[callback, Epochs(batches, killed)]
    )
    trainer.train(resume_from_checkpoint=callback.restore(output))


if __name__ == "__main__":
    in_turn(train, sys.argv[1:])
