"""Repack of a thousand models, saved as people save them: time, memory and bytes.

Two families of fine-tunes of each kind, by how they came to be stored:

- `chains`: steps of trainings, each saved with the published model as its declared base, while the
  step before is much nearer.
- `alone`: on branches of their own, where nothing else lies, so a save finds no base.
- `adapters`: the published model with adapters of rank 4 merged into it, saved against that.
- `near`: saved without saying of which: a save finds what a repack would.

`mb_per_s` is of all tensors' bytes, shares are of them. Before and after are bytes of packs alone;
by kind, of the members that its models reach.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, begin_peak, process_mib

import tensorrepo as tr
from tensorrepo.formats.model.maintenance.usage import every_tree, measure_usage, models_at

MODELS, FAMILIES, TENSORS, SIDE = 1_000, 8, 4, 128
KINDS = ("chains", "alone", "adapters", "near")
TUNED, STEP, RANK = 2e-4, 1e-6, 4  # how far numbers move: in all, in a step; of adapters
AT_ONCE = 50  # models in a commit
# As for an archive: numbers of 32 bits that all moved pay little where reads must be quick.
ALPHA = 3

Tensors = dict[str, np.ndarray[Any, Any]]


def repack(folder: Path, options: Options) -> dict[str, Any]:
    """1,000 models of 256 KiB, and what they were tuned from."""
    repository = tr.init(folder / "repository", author="Bench <bench@example.org>")
    count = max(FAMILIES, round(MODELS * options.scale))
    _save(repository, count)
    before = _stored_bytes(repository)
    begin_peak()
    begun, cpu = time.perf_counter(), time.process_time()
    report = repository.repack_models(alpha=ALPHA)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    peak = process_mib("VmHWM")
    repository = tr.open(folder / "repository")
    for number in range(count - FAMILIES, count):
        last = repository.model(*_place(number)).load(output="numpy")
        assert all(np.array_equal(last[name], each) for name, each in tuned(number).items())
    after, each = _stored_bytes(repository), TENSORS * SIDE * SIDE * 4
    models = count + sum(1 for family in range(FAMILIES) if _has_base(family))
    stored = report.stored_bytes or report.present_bytes
    return {
        "models": models,
        "repack_s": round(seconds, 2),
        "cpu_ms_a_model": round(cpu / models * 1e3, 2),
        "mb_per_s": round(models * each / seconds / 1e6, 1),
        "bytes_before": report.present_bytes,
        "bytes_after": stored,
        "share_of_raw_before": round(report.present_bytes / (models * each), 3),
        "share_of_raw_after": round(stored / (models * each), 3),
        **{f"{kind}_after_to_before": round(after[kind] / before[kind], 3) for kind in KINDS},
        "peak_mib": round(peak),
        "goal": "cpu_ms_a_model <= 60, peak_mib <= 1024, share_of_raw_after < share_of_raw_before",
    }


def _save(repository: tr.Repository, count: int) -> None:
    """The published models, then all that were made of them, in turn."""
    with repository.transaction("main", "published") as change:
        for family in filter(_has_base, range(FAMILIES)):
            change.save_model(_base_name(family), published(family))
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        alone = [number for number in numbers if _kind(number % FAMILIES) == "alone"]
        with repository.transaction("main", f"models from {first}") as change:
            for number in numbers:
                if number in alone:
                    continue
                family, declared = number % FAMILIES, None
                if _kind(family) != "near":
                    declared = f"main:models/{_base_name(family)}"
                change.save_model(_place(number)[0], tuned(number), base=declared)
        for number in alone:
            name, branch = _place(number)
            with repository.transaction(branch, name) as change:
                change.save_model(name, tuned(number))


def _stored_bytes(repository: tr.Repository) -> dict[str, int]:
    """Bytes of the members that models of each kind reach, each once."""
    core = repository.context.core
    models = models_at(core, every_tree(core))
    return {
        kind: measure_usage(core.objects, models, [f"models/{kind}"]).total.stored_bytes
        for kind in KINDS
    }


def _kind(family: int) -> str:
    """How the models of a family came to be stored: as many families are of each kind."""
    return KINDS[family * len(KINDS) // FAMILIES]


def _has_base(family: int) -> bool:
    """Whether the published model lies in the repository."""
    return _kind(family) != "alone"


def _base_name(family: int) -> str:
    return f"{_kind(family)}/base{family}"


def _place(number: int) -> tuple[str, str]:
    """Name and branch of a model."""
    kind = _kind(number % FAMILIES)
    name = f"{kind}/m{number:05}"
    return name, f"try-{number}" if kind == "alone" else "main"


def published(family: int) -> Tensors:
    """What a family was tuned from."""
    rng = np.random.default_rng([SEED, family])
    shape = (TENSORS, SIDE, SIDE)
    return _named(rng.normal(0, 0.02, shape).astype("<f4"))


def tuned(number: int) -> Tensors:
    """Model of that number, of family ``number % FAMILIES``."""
    family, step = number % FAMILIES, number // FAMILIES
    kind, shape = _kind(family), (TENSORS, SIDE, SIDE)
    own = np.random.default_rng([SEED, FAMILIES + number])
    moved = np.zeros(shape)
    if kind == "adapters":
        factors = own.normal(0, 0.02, (2, TENSORS, SIDE, RANK))
        moved = factors[0] @ factors[1].transpose(0, 2, 1)
    elif kind == "near":
        moved = own.normal(0, 10 * STEP, shape)
    else:  # a way that all of a family went, and each a step of its own
        moved = np.random.default_rng([SEED, family, 1]).normal(0, TUNED, shape)
        moved += step * np.random.default_rng([SEED, family, 2]).normal(0, STEP / 10, shape)
        moved += own.normal(0, STEP, shape)
    base = np.stack(list(published(family).values()))
    return _named(base + moved.astype("<f4"))


def _named(arrays: np.ndarray[Any, Any]) -> Tensors:
    return {f"layers.{at}.weight": each for at, each in enumerate(arrays)}


CASES = {"repack": repack}
