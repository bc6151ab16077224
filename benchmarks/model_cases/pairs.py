"""Pairs of models a few optimizer steps apart, from really training two small networks here.

    PYTHONPATH=benchmarks python -m model_cases.pairs FOLDER

A byte-level transformer reads this project's documentation, always of the same commit, a
convolutional network reads handwritten digits. Each is trained from nothing at a high rate, then
fine-tuned at a low one by a fresh AdamW. What is kept: weights and optimizer state at the start of
fine-tuning and 1, 20, 200 and 201 steps later. bf16 models are fp32's weights rounded, as
checkpoints are published.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_cases.texts import pages
from numpy.typing import NDArray
from torch import nn

KEPT = (0, 1, 20, 200, 201)
PAIRS = ((0, 1), (200, 201), (0, 20), (0, 200))
TRAIN_RATE, TUNE_RATE, DECAY, BETAS, EPS = 1e-3, 2e-5, 0.01, (0.9, 0.999), 1e-8
_CONTEXT, _BATCH = 64, 8


class Reader(nn.Module):
    """A decoder of three layers over bytes."""

    def __init__(self, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(256, width)
        self.places = nn.Embedding(_CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.words(text) + self.places.weight[: text.shape[1]]
        found: torch.Tensor = self.out(self.layers(hidden, mask=mask, is_causal=True))
        return found.transpose(1, 2)


def convolutions() -> nn.Module:
    """Six convolutions with normalisation, and a linear layer."""
    blocks: list[nn.Module] = []
    for before, after in ((1, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        blocks += [nn.MaxPool2d(2)] if before < after and before > 1 else []
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def text_batches(part: int) -> Any:
    """Batches from one half of the documentation: tuning reads the second."""
    text = np.frombuffer("".join(pages()[part::2]).encode(), np.uint8)
    rng = np.random.default_rng(part)
    while True:
        starts = rng.integers(0, text.size - _CONTEXT - 1, _BATCH)
        rows = torch.tensor(np.stack([text[at : at + _CONTEXT + 1] for at in starts])).long()
        yield rows[:, :-1], rows[:, 1:]


def digit_batches(part: int) -> Any:
    from sklearn.datasets import load_digits

    digits = load_digits()
    rng = np.random.default_rng(part)
    half = np.arange(part, len(digits.images), 2)
    while True:
        some = rng.choice(half, 32)
        images = torch.tensor(digits.images[some] / 16, dtype=torch.float32)
        yield images[:, None], torch.tensor(digits.target[some]).long()


def train(module: nn.Module, optimizer: Any, batches: Any, steps: int) -> None:
    for _, (given, wanted) in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(given), wanted).backward()
        optimizer.step()


def snapshot(module: nn.Module, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Weights by name; the optimizer's state as ``m/`` and ``v/``."""
    found = {}
    for name, weight in module.named_parameters():
        found[name] = weight.detach().numpy().copy()
        state = optimizer.state.get(weight)
        if state:
            found[f"m/{name}"] = state["exp_avg"].numpy().copy()
            found[f"v/{name}"] = state["exp_avg_sq"].numpy().copy()
    return found


def trained(
    module: nn.Module, batches: Callable[[int], Any], steps: int
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """The kept snapshots of fine-tuning, with their step."""
    train(module, torch.optim.AdamW(module.parameters(), TRAIN_RATE), batches(0), steps)
    tuner = torch.optim.AdamW(
        module.parameters(), TUNE_RATE, betas=BETAS, eps=EPS, weight_decay=DECAY
    )
    done, tuning = 0, batches(1)
    for step in KEPT:
        train(module, tuner, tuning, step - done)
        done = step
        yield step, snapshot(module, tuner)


def make(folder: Path) -> None:
    """Train both networks; about a minute. What is there already stays."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kinds = {"transformer": (Reader, text_batches, 150), "cnn": (convolutions, digit_batches, 100)}
    for kind, (build, batches, steps) in kinds.items():
        if (folder / f"{kind}-{KEPT[-1]}.npz").exists():
            continue
        for step, arrays in trained(build(), batches, steps):
            np.savez(folder / f"{kind}-{step}.npz", **arrays)


def load(folder: Path, kind: str, step: int) -> dict[str, NDArray[Any]]:
    with np.load(folder / f"{kind}-{step}.npz") as file:
        return {name: file[name] for name in file.files}


def bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the nearest bf16, as bits."""
    return torch.from_numpy(array).bfloat16().view(torch.uint16).numpy()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
