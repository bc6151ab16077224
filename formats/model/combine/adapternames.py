"""What does each tensor of an adapter do, told by its name, its shape and PEFT's config?

Asked once, when an adapter is stored with its base; everything is checked against the base then.

Source:
    Names as PEFT writes them; `lora_up` and `lora_down` as kohya's scripts do.
"""

from __future__ import annotations

import re
from math import isfinite, prod, sqrt
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tensorrepo.formats.model.combine.adapter import ADD, IA3, LORA, REPLACE, Adapter, Change
from tensorrepo.formats.model.filebytes import content_of
from tensorrepo.formats.model.rounding import ROUNDABLE
from tensorrepo.formats.model.values import numbers
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tensorrepo.formats.model.read import Model
    from tensorrepo.formats.model.source import ModelSource
    from tensorrepo.formats.tensors import TensorReader

CONFIG_FILE: Final = "adapter_config.json"
_LORA = re.compile(
    r"(?P<module>.+)\.lora_(?P<side>A|B|down|up|embedding_A|embedding_B)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?:\.weight)?"
)
_IA3 = re.compile(r"(?P<module>.+)\.ia3_l(?:\.[^.]+)?")
_ALPHA = re.compile(r"(?P<module>.+)\.alpha")
_FIRST = {"A", "down", "embedding_A"}
# Of kinds that are kept, and cannot be added to a base here.
_OTHER = re.compile(
    r".*\.(?:lora_magnitude_vector|dora_scale|hada_|lokr_|b?oft_|vera_lambda|lora_[AB]\S*\.bias"
    r"|lora_E|ranknum|trainable_tokens_delta).*"
)
_METHODS = ("lora", "ia3")  # of PEFT: another one may give the same names another meaning
_PREFIXES = ("base_model.model.", "lora_unet_", "lora_te_", "lora_transformer_")
_SHOWN: Final = 4


def declare(base: Model, source: ModelSource, scale: float | None = None) -> Adapter:
    """What an adapter that is to be stored changes of its base.

    Args:
        base: what it was trained on top of.
        source: the adapter. Its config is among its files, or `adapter_config` of its metadata.
        scale: of all its products, where those tell none or another one.

    Raises:
        InvalidInputError: it does not fit the base, or nobody says its scale.
    """
    if scale is not None and not (isinstance(scale, int | float) and isfinite(scale)):
        raise InvalidInputError(f"an adapter's scale is a finite number, got {scale!r:.40}")
    content = source.files.get(CONFIG_FILE)
    if content is None:
        config = source.metadata.get("adapter_config")
    else:
        try:
            config = msgspec.json.decode(content_of(content))
        except msgspec.DecodeError as error:
            raise InvalidInputError(f"{CONFIG_FILE}: {error}") from error
    if config is not None and not isinstance(config, dict):
        raise InvalidInputError(f"{CONFIG_FILE}: expected an object, got {config!r:.40}")
    return find_changes(base, source.named(), config, scale)


def find_changes(
    base: Model,
    tensors: Mapping[str, TensorReader],
    config: Mapping[str, Any] | None,
    scale: float | None = None,
) -> Adapter:
    """What an adapter changes of a base.

    Args:
        base: what it was trained on top of.
        tensors: of the adapter.
        config: PEFT's, where there is one.
        scale: of all products; None: as the config, or the adapter's own tensors, say.

    Raises:
        InvalidInputError: it does not fit the base, or nobody says its scale.
    """
    method = str((config or {}).get("peft_type") or "").lower()
    if method not in ("", *_METHODS):
        return Adapter(method, {}, tuple(sorted(tensors)))
    changes = _Finder(base, tensors, config or {}, scale).changes()
    other = tuple(sorted(name for name in tensors if _OTHER.fullmatch(name)))
    if not other and all(change.kind == ADD for change in changes.values()):
        raise InvalidInputError(
            f"none of the adapter's {len(tensors)} tensors is of the base: {_listed(tensors)}. "
            "Names are compared without PEFT's 'base_model.model.'; the base has "
            f"{_listed(base)}"
        )
    kinds = {change.kind for change in changes.values()}
    return Adapter(method or (LORA if LORA in kinds else IA3 if IA3 in kinds else "other"),
                   changes, other)  # fmt: skip


class _Finder:
    """Looks for what tensors do, by their names."""

    def __init__(
        self,
        base: Model,
        tensors: Mapping[str, TensorReader],
        config: Mapping[str, Any],
        scale: float | None,
    ) -> None:
        self._base, self._tensors, self._config, self._scale = base, tensors, config, scale
        self._swapped = bool(config.get("fan_in_fan_out"))
        self._flat = {name.removesuffix(".weight").replace(".", "_"): name for name in base}

    def changes(self) -> dict[str, Change]:
        found: dict[str, Change] = {}
        pairs: dict[tuple[str, bool], dict[bool, str]] = {}
        for name in sorted(self._tensors):
            low, ia3 = _LORA.fullmatch(name), _IA3.fullmatch(name)
            if _OTHER.fullmatch(name) or _ALPHA.fullmatch(name):
                continue
            self._check_one(name, name.replace(".base_layer.", "."))
            if low is not None:
                side = low["side"]
                sides = pairs.setdefault((low["module"], "embedding" in side), {})
                self._check_one(name, sides.setdefault(side in _FIRST, name))
            elif ia3 is not None:
                found.update(self._scaled(ia3["module"], name))
            else:
                plain = _plain(re.sub(r"\.(modules_to_save|original_module)\.[^.]+\.", ".", name))
                kind = REPLACE if plain in self._base else ADD
                found[plain] = Change(kind=kind, parts=(name,))
        for (module, embedding), sides in pairs.items():
            target, change = self._product(module, embedding=embedding, sides=sides)
            found[target] = change
        return found

    def _check_one(self, name: str, same: str) -> None:
        if name != same:
            raise InvalidInputError(
                f"{name!r} is not of one adapter alone: give what "
                "`peft.get_peft_model_state_dict(model)` returns, or the file that PEFT saves"
            )

    def _product(
        self, module: str, *, embedding: bool, sides: Mapping[bool, str]
    ) -> tuple[str, Change]:
        if len(sides) < 2:
            raise InvalidInputError(
                f"adapter tensor {next(iter(sides.values()))!r}: the other of its pair is missing"
            )
        target = self._target(module)
        first, second = (tuple(self._tensors[sides[which]].shape) for which in (True, False))
        shape = self._numeric(target)
        rank = first[0] if first else 0
        product = second[:1] + first[1:]
        plain = len(second) > 1 and prod(second[1:]) == rank and product == shape
        turned = len(second) == 2 and second[1] == rank and product == shape[::-1]
        if not rank or not (plain or turned):
            raise InvalidInputError(
                f"adapter of {target!r}: {list(second)} times {list(first)} is no update of a "
                f"tensor of shape {list(shape)}. Was it trained on top of another model?"
            )
        transposed = turned and (embedding or self._swapped or not plain)
        return target, Change(
            kind=LORA,
            parts=(sides[False], sides[True]),
            rank=rank,
            scale=self._scale_of(module, rank),
            transposed=transposed,
        )

    def _scaled(self, module: str, name: str) -> Iterator[tuple[str, Change]]:
        target = self._target(module)
        shape, given = self._numeric(target), tuple(self._tensors[name].shape)
        wanted = given[::-1] if self._swapped else given
        rows = (shape[0], *(1,) * (len(shape) - 1))
        columns = (1, *shape[1:2], *(1,) * (len(shape) - 2))
        if wanted not in (rows, columns):
            raise InvalidInputError(
                f"adapter of {target!r}: {list(given)} scales no tensor of shape {list(shape)}. "
                "Was it trained on top of another model?"
            )
        change = Change(kind=IA3, parts=(name,), transposed=self._swapped)
        yield target, change
        bias = target.removesuffix(".weight") + ".bias"
        # What is multiplied behind the layer multiplies its bias, too.
        if (
            given[0] != 1
            and bias in self._base
            and prod(self._base.spec(bias).shape) == prod(given)
        ):
            yield bias, Change(kind=IA3, parts=(name,))

    def _target(self, module: str) -> str:
        """The base's tensor that a module of the adapter is for."""
        plain = _plain(module)
        for name in (f"{plain}.weight", plain, self._flat.get(plain)):
            if name is not None and name in self._base:
                return self._base.aliases.get(name, name)
        # One of both may be wrapped in another module.
        ends, whole = (f".{plain}.weight", f".{plain}"), f"{plain}.weight"
        found = {
            self._base.aliases.get(one, one)
            for one in self._base
            if one.endswith(ends) or whole.endswith(f".{one}")
        }
        if len(found) != 1:
            raise InvalidInputError(
                f"the adapter is for {plain!r}, "
                + (f"which may be {_listed(sorted(found))}" if found else "which the base has not")
                + f": it has {_listed(self._base)}"
            )
        return found.pop()

    def _numeric(self, target: str) -> tuple[int, ...]:
        spec = self._base.spec(target)
        if spec.type.name not in ROUNDABLE:
            raise InvalidInputError(
                f"adapter of {target!r}: nothing can be added to {spec.type.name} in the base. "
                "Give the base that is not quantised"
            )
        return spec.shape

    def _scale_of(self, module: str, rank: int) -> float:
        if self._scale is not None:
            return float(self._scale)
        alpha = self._alpha(module)
        if alpha is None:
            raise InvalidInputError(
                f"nobody says the scale of the adapter's products: give its {CONFIG_FILE} along; "
                "or --adapter-scale, which is alpha / rank; in Python "
                'metadata={"adapter_config": {"lora_alpha": ALPHA}}'
            )
        return alpha / (sqrt(rank) if self._config.get("use_rslora") else rank)

    def _alpha(self, module: str) -> float | None:
        own = self._tensors.get(f"{module}.alpha")
        if own is not None:
            data = np.empty(own.type.bytes_of(tuple(own.shape)), np.uint8).data
            own.read_into(0, data)
            value = numbers(data, own.type)
            return None if value is None or value.size != 1 else float(value.reshape(-1)[0].real)
        patterns = self._config.get("alpha_pattern") or {}
        for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
            if _is_meant(_plain(module), pattern):
                return _number(value, f"alpha_pattern of {pattern!r:.80}")
        alpha = self._config.get("lora_alpha")
        return float(alpha) if isinstance(alpha, int | float) else None


def _is_meant(module: str, pattern: str) -> bool:
    """Whether a module is one that PEFT's `alpha_pattern` means: by its end, or an expression."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        # Arrow's takes time in proportion to the text, which the one of Python may not.
        found = pc.match_substring_regex(pa.array([module]), rf"^(.*\.)?({pattern})$")
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"alpha_pattern {pattern!r:.80}: no expression that is known here: {error!s:.200}. "
            "Give the adapter's scale, or a config that names modules"
        ) from error
    return bool(found[0].as_py())


def _number(value: Any, where: str) -> float:
    if isinstance(value, int | float) and isfinite(value):
        return float(value)
    raise InvalidInputError(f"{CONFIG_FILE}, {where}: expected a finite number, got {value!r:.40}")


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(map(repr, shown[:_SHOWN])) + (", ..." if len(shown) > _SHOWN else "")
