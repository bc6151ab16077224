"""The main job on real data: pictures in, committed, streamed into training, the model beside them.

    make demo              in .demo/, on this machine's disk
    make demo STORE=s3     the same against a local S3 server

The pictures are scikit-learn's digits; and Fashion-MNIST, when Debian's package
dataset-fashion-mnist is installed. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import tensorrepo as tr

ROOT = Path(os.environ.get("DEMO_FOLDER") or Path(__file__).resolve().parent.parent / ".demo")
QUICK = bool(os.environ.get("DEMO_QUICK"))  # for tests: the story with little training
EPOCHS = 2 if QUICK else 20
FASHION = Path("/usr/share/datasets/fashion-mnist")
TENSORREPO = shlex.split(os.environ.get("DEMO_COMMAND", "")) or [sys.executable, "-m", "tensorrepo"]
FIRST, ALL = (
    1000,
    1500,
)  # pictures committed first, and after the second batch; the rest is for tests
BUCKET = "demo"


def main() -> None:
    begun = time.perf_counter()
    shutil.rmtree(ROOT, ignore_errors=True)
    work = ROOT / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    os.environ |= {
        "TENSORREPO_AUTHOR": "Demo <demo@example.org>",
        "XDG_STATE_HOME": str(ROOT / "state"),
        "XDG_CACHE_HOME": str(ROOT / "cache"),
        "XDG_CONFIG_HOME": str(ROOT / "config"),
    }
    with ExitStack() as stack:
        url = None
        if os.environ.get("STORE") == "s3":
            url = stack.enter_context(local_s3())
        tell("1. A repository, and real pictures in it")
        run("init", *([url] if url else []))
        digits = load_digits()
        write_pictures(work / "digits", digits, 0, FIRST)
        run("add", "digits", "--dataset", "digits")
        run("commit", "-m", "The first thousand digits")
        run("tag", "v1")
        repo = tr.open(url or work / ".tensorrepo/store")
        first = fingerprint(repo, "v1")

        tell("2. Stream them, shuffled, into training; commit the model beside its data")
        test = pixels(digits.images[ALL:]), torch.tensor(digits.target[ALL:])
        model = classifier(64)
        stream = repo.dataset("digits").stream(batch_size=64, output="torch", transform=decoded)
        accuracy = train(model, stream, epochs=EPOCHS, test=test)
        with repo.transaction("main", "A classifier of the first digits") as tx:
            tx.save_model(
                "classifier",
                model.state_dict(),
                metrics={"accuracy": accuracy},
                derived_from=[stream],
            )
        run("log", "--oneline")
        run("show", "HEAD:models/classifier")

        tell("3. On a branch: more data, further training")
        run("switch", "-c", "more-data")
        write_pictures(work / "more", digits, FIRST, ALL)
        run("add", "more", "--dataset", "digits", "--append")
        run("commit", "-m", "Five hundred more digits")
        stream = repo.dataset("digits", "more-data").stream(
            batch_size=64, output="torch", transform=decoded, seed=1
        )
        before = repo.model("classifier", "more-data")
        before.load_into(model)
        accuracy = train(model, stream, epochs=EPOCHS, test=test)
        with repo.transaction("more-data", "Trained on all digits") as tx:
            tx.save_model(
                "classifier", model.state_dict(), base="more-data:models/classifier",
                metrics={"accuracy": accuracy}, derived_from=[stream],
            )  # fmt: skip

        tell("4. Meanwhile somebody works on main; then both come together")
        run("switch", "main")
        (work / "NOTES.md").write_text("Digits come from scikit-learn, 8 x 8 pixels.\n")
        run("add", "NOTES.md", "--file", "NOTES.md")
        run("commit", "-m", "Say where the digits come from")
        run("diff", "main", "more-data")
        run("merge", "more-data")
        run("log", "--graph", "--all")
        if url is None:
            show_storage(work / ".tensorrepo/store")

        tell("5. The first version again, bit for bit")
        run("checkout", "v1", "datasets/digits", "--to", "first")
        same = fingerprint(tr.open(url or work / ".tensorrepo/store"), "v1") == first
        print(f"The {len(repo.dataset('digits', 'v1')):,} pictures of v1 are bit-identical: {same}")
        files = compare_files(work / "digits", work / "first/datasets/digits")
        print(f"The {files:,} files written out again are byte for byte those that were added.")
        if not same:
            sys.exit("the first version came back changed")

        if FASHION.is_dir() and url is None and not QUICK:
            fashion(repo)
    print(f"\nDone in {time.perf_counter() - begun:.0f} s. Look around in {work}: tensorrepo log")


def fashion(repo: tr.Repository) -> None:
    """The same at 70,000 pictures, straight from MNIST's file format."""
    tell("6. Fashion-MNIST, 60,000 pictures")
    run("add", str(FASHION), "--dataset", "fashion", "-o", "split=train")
    run("commit", "-m", "Fashion-MNIST")
    held_out = tr.read(FASHION, split="t10k")
    images, labels = [], []
    for batch in held_out.batches:
        images.append(np.asarray(batch["image"]))
        labels.append(np.asarray(batch["label"]))
    test = flat(torch.from_numpy(np.concatenate(images))), torch.from_numpy(np.concatenate(labels))
    data = repo.dataset("fashion")
    stream = data.stream(batch_size=256, output="torch")
    begun = time.perf_counter()
    rows = sum(len(batch.rows) for batch in stream)
    print(f"streamed {rows:,} shuffled rows at {rows / (time.perf_counter() - begun):,.0f} rows/s")
    model = classifier(784)
    accuracy = train(model, stream, epochs=2, test=test)
    with repo.transaction("main", "A classifier of clothes") as tx:
        tx.save_model(
            "clothes", model.state_dict(), metrics={"accuracy": accuracy}, derived_from=[stream]
        )
    run("ls")


def classifier(inputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 10))


def train(
    model: nn.Module, stream: tr.Stream, *, epochs: int, test: tuple[torch.Tensor, torch.Tensor]
) -> float:
    """Train on the batches of a stream; gives the accuracy on `test`, and prints it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        for batch in stream:
            loss = nn.functional.cross_entropy(model(flat(batch["image"])), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"trained {epochs} epochs; accuracy on pictures it never saw: {accuracy:.1%}")
    return round(accuracy, 4)


def decoded(batch: Any) -> dict[str, torch.Tensor]:
    """A batch with its pictures decoded: uint8, (rows, height, width)."""
    images = np.stack([tr.decode_image(image) for image in batch["image"]])
    return {"image": torch.from_numpy(images), "label": batch["label"]}


def flat(images: torch.Tensor) -> torch.Tensor:
    return images.reshape(len(images), -1).float() / 255


def pixels(images: np.ndarray[Any, Any]) -> torch.Tensor:
    """scikit-learn's digits (0 to 16) as the pictures written out have them."""
    return flat(torch.from_numpy((images * 15).astype(np.uint8)))


def write_pictures(folder: Path, digits: Any, start: int, stop: int) -> None:
    """PNG files in a folder for each class, as people have them."""
    for at in range(start, stop):
        place = folder / str(digits.target[at])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[at] * 15).astype(np.uint8)).save(place / f"{at:05}.png")


def fingerprint(repo: tr.Repository, ref: str) -> str:
    """A hash of every value of a version."""
    hasher = hashlib.sha256()
    for row in repo.dataset("digits", ref):
        hasher.update(bytes(row["image"]))
        hasher.update(str(row["label"]).encode())
    return hasher.hexdigest()


def compare_files(old: Path, new: Path) -> int:
    """How many files are equal in both folders; ends the demo when one differs."""
    names = sorted(path.relative_to(old) for path in old.rglob("*.png"))
    for name in names:
        if (old / name).read_bytes() != (new / name).read_bytes():
            sys.exit(f"{name} came back changed")
    return len(names)


def show_storage(store: Path) -> None:
    """What the repository takes on the disk."""
    stored = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    print(f"The whole repository, every version of it, takes {stored / 2**20:.2f} MiB.")


def run(*words: str) -> None:
    """One command of the command line, shown and run."""
    print(f"\n$ tensorrepo {shlex.join(words)}", flush=True)
    subprocess.run([*TENSORREPO, *words], check=True)


def tell(title: str) -> None:
    print(f"\n=== {title}", flush=True)


@contextmanager
def local_s3() -> Iterator[str]:
    """A small S3 server on this machine; gives the URL of a repository in it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from s3_server import S3Server

    with S3Server(ROOT / "s3") as server:
        (ROOT / "s3" / BUCKET).mkdir(parents=True, exist_ok=True)
        os.environ |= {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo-secret",
            "AWS_REGION": "us-east-1",
        }
        print(f"an S3 server answers at {server.url}")
        yield f"s3://{BUCKET}/repository"


if __name__ == "__main__":
    main()
