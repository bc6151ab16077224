"""Merge recipes: how a model was made of others, so that it can be made again.

A recipe is JSON in the model's metadata. It names parents by digest, and every setting: making it
again gives the same bits, on every machine.

Source:
    docs/spec/model.md, section "Recipes".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.model.layout.manifest import Manifest
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.typed_decoding import from_plain

KEY: Final = "recipe"
METHODS: Final = ("average", "slerp", "task-arithmetic", "ties")
ADAPTER: Final = "adapter"  # no blend: the parents are adapters, which are put into the base
WITH_BASE: Final = ("task-arithmetic", "ties", ADAPTER)
VERSION: Final = 1


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A blend of models.

    Attributes:
        method: one of `METHODS`, or `ADAPTER`.
        parents: digests, in order.
        base: digest of what the parents were tuned from, in the methods that need it.
        weights: one for each parent. "average" divides by their sum; "slerp" takes two, whose
            ratio is the place on the arc.
        density: for "ties" the share of each tensor's changes that is kept, the largest ones.
        scale: factor of the joint change, in the methods with a base.
        strict: all models have the same tensors; else tensors that differ are the first parent's.
    """

    method: str
    parents: tuple[str, ...]
    base: str | None = None
    weights: tuple[float, ...] = ()
    density: float = 0.2
    scale: float = 1.0
    strict: bool = True
    version: int = VERSION

    def __post_init__(self) -> None:
        fault = next(_faults(self), None)
        if fault is not None:
            raise InvalidInputError(f"cannot blend: {fault}")

    def to_json(self) -> dict[str, Any]:
        settings: dict[str, Any] = as_plain(msgspec.to_builtins(self))
        return settings


def make_recipe(
    method: str,
    parents: tuple[str, ...],
    *,
    weights: Sequence[float] | None = None,
    density: float = 0.2,
    scale: float = 1.0,
    **settings: Any,
) -> Recipe:
    """A recipe of further `settings`; the default are equal weights, which sum to 1 as shares.

    Raises:
        InvalidInputError: settings that no method has, or that do not fit together.
    """
    if weights is None:
        share = 1.0 if method in WITH_BASE else 1 / max(len(parents), 1)
        weights = (share,) * len(parents)
    numbers = tuple(float(weight) for weight in weights)
    return Recipe(
        method=method,
        parents=parents,
        weights=numbers,
        density=float(density),
        scale=float(scale),
        **settings,
    )


def recipe_of(manifest: Manifest) -> Recipe | None:
    """The recipe that a model was blended by, None when it was not. Raises CorruptError, and
    UnsupportedError for a recipe of a newer version.
    """
    found = manifest.metadata.get(KEY)
    if not isinstance(found, dict) or "method" not in found:
        return None
    version = found.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise UnsupportedError(
            f"the recipe in the model's metadata: version {version}, this tensorrepo reads "
            f"{VERSION}. Update it."
        )
    try:
        return from_plain(found, Recipe)
    except msgspec.ValidationError as error:
        raise CorruptError(f"the recipe in the model's metadata: {error}") from error


def with_recipe(metadata: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with a recipe in it, in place of an older one."""
    return {**metadata, KEY: dict(recipe)}


def _faults(recipe: Recipe) -> Iterator[str]:
    count = len(recipe.parents)
    if recipe.method not in (*METHODS, ADAPTER):
        known = ", ".join((*METHODS, ADAPTER))
        yield f"there is no method {recipe.method!r:.40}, there are {known}"
    if recipe.version != VERSION:
        yield f"its recipe has version {recipe.version}, this tensorrepo knows {VERSION}"
    least = 1 if recipe.method in WITH_BASE else 2
    if recipe.method == "slerp" and count != 2:
        yield f"slerp takes two models, got {count}"
    elif count < least:
        yield f"{recipe.method} takes {least} or more models, got {count}"
    if (recipe.base is None) == (recipe.method in WITH_BASE):
        needs = "needs a base" if recipe.base is None else "takes no base"
        yield f"{recipe.method} {needs}: the model that the others were trained from"
    if len(recipe.weights) != count or not all(isfinite(one) for one in recipe.weights):
        yield f"{count} models take as many finite weights, got {list(recipe.weights)}"
    if not isfinite(sum(recipe.weights)):
        yield f"the sum of the weights is too large: {list(recipe.weights)}"
    shares = recipe.method in {"average", "slerp"}
    if shares and (sum(recipe.weights) <= 0 or min(recipe.weights, default=0) < 0):
        yield f"weights of {recipe.method} are not negative, and not all 0: {list(recipe.weights)}"
    if not 0 < recipe.density <= 1:
        yield f"a density is in (0, 1], got {recipe.density}"
    if not isfinite(recipe.scale):
        yield f"scale {recipe.scale}"
