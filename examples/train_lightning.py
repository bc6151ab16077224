"""Lightning: its checkpoints keep the stream's place, so a run resumes amid an epoch."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from digits import digits, folder, held_out
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import tensorrepo as tr


class Digits(lightning.LightningDataModule):
    """Lightning saves and loads the state of a loader that has one: torchdata's has ours."""

    def __init__(self, data: tr.Dataset) -> None:
        super().__init__()
        self.batches = data.stream(batch_size=64, output="torch", transform=prepared).torch()

    def train_dataloader(self) -> Any:
        return StatefulDataLoader(self.batches, batch_size=None, num_workers=0)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.rows: list[tuple[int, int]] = []

    def on_train_epoch_start(self) -> None:
        self.trainer.datamodule.batches.set_epoch(self.current_epoch)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        self.rows += [(self.current_epoch, row) for row in batch["rows"].tolist()]
        return nn.functional.cross_entropy(self.model(batch["image"]), batch["label"].long())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def prepared(batch: Any) -> dict[str, Any]:
    image = batch["image"].flatten(1).float() / 16
    return {"image": image, "label": batch["label"], "rows": torch.from_numpy(batch.rows)}


def trainer(where: Any, **limits: int) -> lightning.Trainer:
    return lightning.Trainer(
        default_root_dir=where, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, **limits,
        callbacks=[ModelCheckpoint(where / "checkpoints", every_n_train_steps=10, save_top_k=-1)],
    )  # fmt: skip


def main() -> None:
    where = folder()
    data = digits(where)
    first = Classifier()
    trainer(where, max_steps=30).fit(first, datamodule=Digits(data))  # stopped amid epoch 1
    (saved,) = (where / "checkpoints").glob("*step=30.ckpt")

    again = Classifier()
    trainer(where, max_epochs=4).fit(again, datamodule=Digits(data), ckpt_path=saved)
    seen = first.rows + again.rows
    every = [(epoch, row) for epoch in range(4) for row in range(len(data))]
    print(f"resumed from {saved.name}; each row once an epoch: {sorted(seen) == every}")
    images, labels = (torch.from_numpy(each) for each in held_out())
    accuracy = (again.model(images).argmax(1) == labels).float().mean().item()
    print(f"accuracy on pictures it never saw: {accuracy:.1%}")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    main()
