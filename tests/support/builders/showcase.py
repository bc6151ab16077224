"""A repository as people have them, for the tests of pages: pictures, sounds, models, runs."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

import tensorrepo as tr
from tensorrepo.formats.dataset.schema.types import Scalar

PICTURES = 240
README = """# Photos

Patches of two photographs, cut by *hand*, with **labels**.

| split | rows |
|---|---|
| train | 240 |

```python
repo.dataset("photos").stream(batch_size=32)
```
"""


def fill_showcase(url: str) -> None:
    """Commit, branch, merge, train and register in the empty repository at `url`."""
    repo = tr.open(url, author="Ann Archer <ann@example.org>")
    with repo.transaction(message="Patches of two photographs\n\nCut at random, 96 x 96.") as tx:
        tx.create_dataset("photos", _photos(0, PICTURES), columns=_photo_columns())
        tx.save_file("README.md", README.encode())
    repo.create_tag("v1")
    repo.create_branch("sounds")
    _sounds(repo)
    with repo.transaction(message="Some photographs more, and a caption corrected") as tx:
        photos = tx.dataset("photos")
        photos.append(_photos(PICTURES, 24))
        photos.update("caption = 'patch 3'", {"caption": "A flower, seen from above"})
    repo.merge("sounds")
    _train(repo)
    _measure(repo)
    _relabel(repo)
    repo.create_branch("experiment/a-very-long-name-of-a-branch-that-nobody-should-have-chosen")


def _measure(repo: tr.Repository) -> None:
    """A run that says what its machine did."""
    with repo.run("with-a-machine", params={"lr": 0.1}, system_seconds=None) as run:
        for step in range(0, 300, 10):
            run.log_metrics(
                {
                    "loss": float(np.exp(-step / 100)),
                    "system/cpu_percent": 60 + step % 30,
                    "system/process_memory_gib": 1 + step / 600,
                    "system/gpu0_percent": 90.0,
                },
                step,
            )


def _relabel(repo: tr.Repository) -> None:
    """The branch `relabel`: rows changed, removed and added, a file and a model."""
    repo.create_branch("relabel")
    with repo.transaction("relabel", message="Labels corrected, a picture replaced") as tx:
        photos = tx.dataset("photos")
        photos.update("caption = 'patch 11'", {"image": _photos(900, 1)["image"][0]})
        photos.update("caption = 'patch 12'", {"caption": "A temple at dusk"})
        photos.delete("caption = 'patch 9'")
        photos.append(_photos(1000, 3))
        tx.save_file("README.md", README.replace("by *hand*", "by machine").encode())
        weights = {**repo.model("classifier").load()}
        weights["head.weight"] = weights["head.weight"] * np.float32(1.01)
        tx.save_model("classifier", weights, metrics={"accuracy": 0.95, "loss": 0.18})


def _photo_columns() -> dict[str, object]:
    return {
        "image": tr.Image("jpeg"),
        "label": tr.ClassLabel(["temple", "flower"]),
        "caption": tr.Text(),
        "brightness": "float32",
        "width": "int64",
        "embedding": tr.Tensor("float32", (16,)),
        "rating": tr.Column("rating", Scalar("float64"), nullable=True),
    }


def _photos(start: int, count: int) -> dict[str, Any]:
    from sklearn.datasets import load_sample_images  # takes two seconds, of each worker

    rng = np.random.default_rng(start)
    sources: list[NDArray[np.uint8]] = load_sample_images().images
    labels = rng.integers(0, 2, count)
    patches = [_patch(sources[label], rng) for label in labels.tolist()]
    ratings = [None if rng.random() < 0.2 else float(rng.normal(3, 1)) for _ in range(count)]
    return {
        "image": [simplejpeg.encode_jpeg(patch, 85) for patch in patches],
        "label": labels,
        "caption": [f"patch {start + at}" for at in range(count)],
        "brightness": np.array([patch.mean() for patch in patches], np.float32),
        "width": np.full(count, 96),
        "embedding": rng.normal(size=(count, 16)).astype(np.float32),
        "rating": ratings,
    }


def _patch(source: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    top, left = rng.integers(0, source.shape[0] - 192), rng.integers(0, source.shape[1] - 192)
    return np.ascontiguousarray(source[top : top + 192 : 2, left : left + 192 : 2])


def _sounds(repo: tr.Repository) -> None:
    tones = [220 * 2 ** (at / 12) for at in range(8)]
    with repo.transaction("sounds", message="Eight tones") as tx:
        tx.create_dataset(
            "sounds/tones",
            {
                "sound": [tone(hertz) for hertz in tones],
                "hertz": tones,
                "spectrum": [_spectrum(at) for at in range(8)],
            },
            columns={"spectrum": tr.Tensor("float32", (24, 32))},
        )


def tone(hertz: float) -> bytes:
    """Half a second of a tone, as a WAV file."""
    at = np.arange(4000) / 8000
    samples = (8000 * np.sin(2 * np.pi * hertz * at)).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def _spectrum(at: int) -> NDArray[np.float32]:
    y, x = np.mgrid[0:24, 0:32]
    return np.exp(-((y - 3 * at) ** 2) / 20 - (x - 16) ** 2 / 200).astype(np.float32)


def _train(repo: tr.Repository) -> None:
    rng = np.random.default_rng(1)
    weights = {
        "embed.weight": rng.normal(size=(512, 64)).astype(np.float32),
        **{
            f"layers.{layer}.{name}.weight": rng.normal(size=(64, wide)).astype(np.float32)
            for layer in range(4)
            for name, wide in (("attention", 192), ("mlp", 256))
        },
        "head.weight": rng.normal(size=(64, 512)).astype(np.float32),
    }
    for name, rate in (("baseline", 0.1), ("slower", 0.03)):
        with repo.run(name, params={"lr": rate, "layers": 4}) as run:
            for step in range(200):
                run.log_metric("loss", float(np.exp(-rate * step / 4) + rng.random() / 20), step)
                run.log_metric("accuracy", float(1 - np.exp(-rate * step / 5)), step)
            list(repo.dataset("photos").stream(batch_size=64, columns=["brightness"]))
            run.save_model("classifier", weights, metrics={"accuracy": 0.9 + rate, "loss": 0.2})
        weights = weights | {
            name: tensor + (rng.normal(size=tensor.shape) / 100).astype(np.float32)
            for name, tensor in weights.items()
            if "layers.3" in name or "head" in name
        }
    repo.registry.register("photo-classifier", "main~1:models/classifier")
    repo.registry.register("photo-classifier", repo.model("classifier"), alias="champion")
    repo.registry.describe("photo-classifier", description="Tells temples from *flowers*.")
