"""Trainings by Lightning over a stream of ours, in processes that may be killed.

python -m tests.tensorrepo.integrations.lightning_training PACKAGE FOLDER:STEPS[:KILLED] ...
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import tensorrepo as tr
from tests.support.processes.killed import in_turn

# Metrics of texts and sounds, which torchmetrics takes along, are half of what it costs to import
# Lightning. Nobody here asks for one.
UNUSED = ("transformers", "scipy.signal")


class UnusedModule(ModuleType):
    """A module that has whatever is imported from it, and whose names mean nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def train(package: str, folder: Path, steps: int, killed: int | None = None) -> None:
    """Train to a step.

    Args:
        package: "lightning" or "pytorch_lightning".
        folder: has the repository, with a dataset, in ``repo``.
        steps: of the whole training.
        killed: the step after which the process kills itself.
    """
    lightning, plugins = packages(package)
    logging.getLogger(lightning.__name__).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(3)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, width: int = 8, kind: type = nn.ReLU) -> None:
            super().__init__()
            self.save_hyperparameters(ignore=["kind"])
            self.net = nn.Sequential(
                nn.Linear(4, width), kind(), nn.Dropout(0.2), nn.Linear(width, 1)
            )

        def on_train_epoch_start(self) -> None:
            batches.set_epoch(self.current_epoch)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = (self.net(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == killed:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["random"] = torch.get_rng_state()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.random = checkpoint["random"]

        def on_train_start(self) -> None:
            if self.global_step:
                torch.set_rng_state(self.random)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    repository = tr.open(folder / "repo", author="Ada <ada@example.org>")
    points = repository.dataset("points")
    batches = points.stream(batch_size=8, seed=5, output="torch", transform=dict).torch()
    loader = StatefulDataLoader(batches, batch_size=None, num_workers=0)
    first = "Repository" if package == "lightning" else "Pytorch"
    checkpoint_io, logger = (getattr(plugins, first + kind) for kind in ("CheckpointIO", "Logger"))
    plugin = checkpoint_io(repository, "exp1")
    trainer = lightning.Trainer(
        accelerator="cpu",
        plugins=[plugin],
        logger=logger(repository, "exp1", resume=True, system_seconds=None),
        callbacks=[
            lightning.callbacks.ModelCheckpoint(
                folder / "ckpt", monitor="loss", save_top_k=2, every_n_train_steps=3, save_last=True
            )
        ],
        max_steps=steps,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), loader, ckpt_path=plugin.latest())


def packages(name: str) -> tuple[Any, Any]:
    """Lightning, and the plug-ins for it."""
    sys.modules.update((each, UnusedModule(each)) for each in UNUSED)
    package = {"lightning": "lightning.pytorch"}.get(name, name)
    return importlib.import_module(package), importlib.import_module(
        f"tensorrepo.integrations.{name}"
    )


if __name__ == "__main__":
    packages(sys.argv[1])
    in_turn(functools.partial(train, sys.argv[1]), sys.argv[2:])
