"""Plain PyTorch: train, stop amid an epoch, go on where it was; then the same with a DataLoader."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import torch
from digits import digits, folder, held_out
from torch import nn
from torch.utils.data import DataLoader

import tensorrepo as tr


def main() -> None:
    where = folder()
    data = digits(where)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    stream = data.stream(batch_size=64, output="torch", transform=prepared)
    train(model, optimizer, islice(stream, 10))  # ten steps, and then the machine goes away
    place = where / "place.json"
    place.write_text(json.dumps(stream.state_dict()))

    again = data.stream(batch_size=64, output="torch", transform=prepared)
    again.load_state_dict(json.loads(place.read_text()))
    print(f"resumed at row {again.state_dict()['position']:,} of epoch {again.epoch}")
    for epoch in range(6):
        again.set_epoch(epoch)  # the epoch that was resumed keeps its place
        train(model, optimizer, again)

    batches = again.torch()
    loader = DataLoader(batches, batch_size=None, num_workers=2)  # batches come ready made
    for epoch in range(6, 8):
        batches.set_epoch(epoch)
        train(model, optimizer, loader)

    images, labels = (torch.from_numpy(each) for each in held_out())
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"accuracy on pictures it never saw: {accuracy:.1%}")


def prepared(batch: Any) -> Any:
    """Runs on threads of the stream, or in the workers of a loader."""
    batch["image"] = batch["image"].flatten(1).float() / 16
    return batch


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for batch in batches:
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    print(f"tensorrepo {tr.__version__}, torch {torch.__version__}")
    main()
