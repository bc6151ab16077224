"""A training by Hugging Face's Trainer in one rank of several, which meet in gloo.

python -m tests.tensorrepo.integrations.trainer_ranks FOLDER RANK RANKS STEPS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import tensorrepo as tr
from tensorrepo.integrations.transformers import RepositoryCallback
from tests.tensorrepo.integrations.trainer_training import Net


class Points(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(at) / 64)}


def train(folder: Path, rank: int, ranks: int, steps: int) -> None:
    """Train to a step, from the newest checkpoint that there is."""
    meeting = f"file://{folder}/meeting-{steps}"
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    repository = tr.open(folder / "repo", author="Ada <ada@example.org>")
    callback = RepositoryCallback(repository, "exp1", system_seconds=None)
    arguments = TrainingArguments(
        output_dir=str(folder / f"output-{steps}"), use_cpu=True, report_to=[], save_steps=2,
        logging_steps=1, disable_tqdm=True, max_steps=steps, per_device_train_batch_size=4,
        ddp_backend="gloo",
    )  # fmt: skip
    trainer = Trainer(Net(), arguments, train_dataset=Points(), callbacks=[callback])
    assert arguments.world_size == ranks
    trainer.train(resume_from_checkpoint=callback.restore(arguments.output_dir))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
