"""The best 3 of 24 networks by few bytes of each, against reading and scoring all of them whole.

Networks read handwritten digits (scikit-learn's, 360 held out): random hidden layers of ReLU, and a
last layer fitted by least squares to 40 to 1,400 rows, so that they differ as trainings of unlike
luck do. Weights are F32, each network has layers of its own. Every round evaluates anew, under
another name; both sides record the same runs and read the same rows. Times are of the processor,
all threads: on a local disk what is read costs next to nothing, so this is what progress costs.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Options, Skipped, medians_ms, ratio, take_turns

import tensorrepo as tr
from tensorrepo.intervals import accuracy, cross_entropy

NETWORKS, KEPT, WIDTH, TRAINED = 24, 3, 512, 1437
Layers = dict[str, Any]


def progressive(hidden: int, how: str, metric: str) -> Case:
    def case(folder: Path, options: Options) -> dict[str, Any]:
        width = int(WIDTH * options.scale)
        repo, names = _networks(folder, hidden, width)
        score = METRICS[metric]
        mode = "min" if metric == "loss" else "max"
        found: dict[str, Any] = {}
        rounds = itertools.count()

        def evaluate(side: str, **more: Any) -> float:
            begun = time.process_time()
            found[side] = repo.evaluate(
                names, data="test", metric=score, mode=mode, keep=KEPT, version="1",
                name=f"{side}-{next(rounds)}", **more,
            )  # fmt: skip
            return time.process_time() - begun

        seconds = take_turns(
            options.rounds,
            {
                "whole_cpu": lambda: evaluate("whole"),
                "progressive_cpu": lambda: evaluate("progressive", progressive=how),
            },
        )
        best = [[one.candidate.name for one in each.kept] for each in found.values()]
        part = found["progressive"]
        outcomes = [score.outcome for score in part]
        return {
            "networks": NETWORKS,
            "kept": KEPT,
            "weights_mib": round(part.whole_bytes / 2**20, 1),
            "read_to_whole": round(part.read_bytes / part.whole_bytes, 3),
            "read_whole": outcomes.count("scored"),
            "same_best": best[0] == best[1],
            **medians_ms(seconds),
            "progressive_to_whole_cpu": ratio(seconds["progressive_cpu"], seconds["whole_cpu"]),
            "goal": "same_best; read_to_whole < 1",
        }

    return case


def _forward(model: Any, rows: Any) -> Any:
    *inner, last = sorted(model)
    hidden = rows
    for name in inner:
        hidden = np.maximum(hidden @ model[name], 0)
    return hidden @ model[last]


def _pixels(data: Any) -> tuple[Any, Any]:
    rows = data.to_numpy()
    return rows["pixels"].astype("f8"), rows["label"]


def accurate(model: Any, data: Any) -> Any:
    pixels, labels = _pixels(data)
    return accuracy(_forward(model, pixels), labels)


def loss(model: Any, data: Any) -> Any:
    pixels, labels = _pixels(data)
    return cross_entropy(_forward(model, pixels), labels)


METRICS = {"accuracy": accurate, "loss": loss}


def _networks(folder: Path, hidden: int, width: int) -> tuple[Any, list[str]]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise Skipped("scikit-learn is not installed: pip install 'tensorrepo[demo]'") from None
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.data[order] / 16).astype("f4")
    labels = digits.target[order]
    repo = tr.init(folder / "store", author="Bench <bench@example.org>")
    with repo.transaction(message="digits") as tx:
        columns = {"pixels": tr.Tensor("float32", (64,)), "label": "int64"}
        held = {"pixels": pixels[TRAINED:], "label": labels[TRAINED:]}
        tx.create_dataset("test", columns=columns).append(held)
    names = [f"n{at:02}" for at in range(NETWORKS)]
    for at, name in enumerate(names):
        layers = _fitted(pixels[:TRAINED], labels[:TRAINED], hidden, width, at)
        with repo.transaction(message=name) as tx:
            tx.save_model(name, layers)
    return repo, names


def _fitted(pixels: Any, labels: Any, hidden: int, width: int, seed: int) -> Layers:
    rng = np.random.default_rng(seed)
    layers: Layers = {}
    features = pixels
    for at in range(hidden):
        inside = features.shape[1]
        weight = rng.normal(0, np.sqrt(2 / inside), (inside, width)).astype("f4")
        layers[f"{at}.hidden"] = weight
        features = np.maximum(features @ weight, 0)
    few = int(40 * (1400 / 40) ** (seed / (NETWORKS - 1)))
    some, wanted = features[:few].astype("f8"), np.eye(10)[labels[:few]]
    kernel = some @ some.T + 1e-2 * few * np.eye(few)
    layers[f"{hidden}.last"] = (some.T @ np.linalg.solve(kernel, wanted)).astype("f4")
    return layers


CASES: dict[str, Case] = {
    "progressive_shallow": progressive(1, "bounds", "accuracy"),
    "progressive_deep": progressive(3, "bounds", "accuracy"),
    "progressive_loss": progressive(1, "bounds", "loss"),
    "progressive_estimates": progressive(3, "estimates", "accuracy"),
}
