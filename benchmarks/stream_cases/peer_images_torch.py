"""torch's `DataLoader` over image files; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peer_support import serve
from pictures import decoded
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    """One file a picture, as `ImageFolder` has it."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(map(str, (folder / "jpegs").iterdir()))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return torch.from_numpy(decoded(Path(self._paths[row]).read_bytes())), row


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    generator = torch.Generator().manual_seed(epoch)
    data = Files(folder)
    return DataLoader(
        data, batch_size=batch_size, shuffle=True, generator=generator, num_workers=workers
    )


if __name__ == "__main__":
    serve(torch.__version__, lambda _: None, loader)
