"""Hugging Face: `Trainer` over a stream, its checkpoints with the stream's place in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from digits import digits, folder, held_out
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import tensorrepo as tr


class StreamTrainer(Trainer):
    """`Trainer`, told that batches come ready made, and noting up to where they were used."""

    place: StreamPlace

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.train_dataset, batch_size=None, num_workers=self.args.dataloader_num_workers
        )

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any) -> torch.Tensor:
        self.place.position = inputs.pop("position")
        self.place.rows += [(self.place.epoch, row) for row in inputs.pop("rows")]
        return super().training_step(model, inputs, *more)


class StreamPlace(TrainerCallback):
    """Keeps the place of a stream beside each checkpoint, and goes on there."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.epoch, self.position = batches, 0, 0
        self.rows: list[tuple[int, int]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "stream.json"
            self.batches.load_state_dict(json.loads(saved.read_text()))
            self.epoch = self.batches.stream.epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.batches.set_epoch(self.epoch)  # the epoch that was resumed keeps its place

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epoch += 1

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "stream.json"
        saved.write_text(json.dumps(self.batches.state_dict(position=self.position)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(image)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def prepared(batch: Any) -> dict[str, Any]:
    image = batch["image"].flatten(1).float() / 16
    labels = batch["label"].long()
    return {"image": image, "labels": labels, "position": batch.position, "rows": batch.rows}


def trainer(where: Path, data: tr.Dataset, **limits: float) -> StreamTrainer:
    batches = data.stream(batch_size=64, output="torch", transform=prepared).torch()
    arguments = TrainingArguments(
        output_dir=str(where / "run"), use_cpu=True, report_to=[], save_steps=10,
        disable_tqdm=True, logging_strategy="no", learning_rate=3e-3, dataloader_num_workers=1,
        ignore_data_skip=True,  # the stream goes on by itself; Trainer would read and drop
        **limits,
    )  # fmt: skip
    place = StreamPlace(batches)
    made = StreamTrainer(Classifier(), arguments, train_dataset=batches, callbacks=[place])
    made.place = place
    return made


def main() -> None:
    where = folder()
    data = digits(where)
    first = trainer(where, data, max_steps=30)  # stopped amid epoch 1
    first.train()

    again = trainer(where, data, num_train_epochs=4)
    again.train(resume_from_checkpoint=True)
    every = [(epoch, row) for epoch in range(4) for row in range(len(data))]
    once = sorted(first.place.rows + again.place.rows) == every
    print(f"went on from step 30 to {again.state.global_step}; each row once an epoch: {once}")
    images, labels = (torch.from_numpy(each) for each in held_out())
    accuracy = (again.model.layers(images).argmax(1) == labels).float().mean().item()
    print(f"accuracy on pictures it never saw: {accuracy:.1%}")


if __name__ == "__main__":
    main()
