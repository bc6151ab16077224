"""A client of Hugging Face in a process of its own, as bench_huggingface measures it.

    python benchmarks/api_cases/hub_client.py upload ID FOLDER
    python benchmarks/api_cases/hub_client.py snapshot ID
    python benchmarks/api_cases/hub_client.py rows ID
    python benchmarks/api_cases/hub_client.py rows URL...

prints the seconds that it took, what it loads not counted.
"""

from __future__ import annotations

import sys
import time


def upload(name: str, folder: str) -> None:
    from huggingface_hub import HfApi

    HfApi().create_repo(name)
    HfApi().upload_folder(repo_id=name, folder_path=folder)


def snapshot(name: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(name)


def rows(*places: str) -> None:
    from datasets import load_dataset

    if places[0].startswith("http://"):
        found = load_dataset("parquet", data_files=list(places), split="train", streaming=True)
    else:
        found = load_dataset(places[0], split="train", streaming=True)
    for batch in found.with_format("arrow").iter(1024):
        assert len(batch)


if __name__ == "__main__":
    began = time.perf_counter()
    {"upload": upload, "snapshot": snapshot, "rows": rows}[sys.argv[1]](*sys.argv[2:])
    print(time.perf_counter() - began)
