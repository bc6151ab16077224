"""LoRA adapters: what they change of a base, by name, and models with them merged in.

An adapter is a model of few tensors that mean something beside another model only: low-rank
updates (LoRA), scales of activations (IA3), and tensors trained in place of the base's. Who stores
one says of which model it is; what each of its tensors does is found and checked then, and kept
with the edge to the base: making the adapted model needs nothing else.

As with blends, nothing is made before it is asked for: each reader computes a stretch of the base's
tensor with what the adapters change of it, in float64, in a fixed order of elementwise operations
(no matrix product of a library: its last bits differ between machines), and rounds once. Held are
the factors of one tensor for each thread that reads.

Source:
    LoRA: Hu et al. 2021; IA3: Liu et al. 2022. docs/spec/model.md, section "Adapters".
    Names as PEFT writes them; `lora_up` and `lora_down` as kohya's scripts do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod, sqrt
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.common.provenance import ADAPTER_OF, ProvenanceEdge, details_of
from tensorrepo.formats.common.tensors import TensorReader, TensorType
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, read_numbers, rounded
from tensorrepo.formats.model.merging.blend import Blend
from tensorrepo.formats.model.merging.recipe import Recipe
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import ModelSource, content_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.typed_decoding import from_json

Values = NDArray[Any]


LORA, IA3, REPLACE, ADD = "lora", "ia3", "replace", "add"
_SHOWN: Final = 4


class AdapterChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an adapter does to one tensor of its base.

    Attributes:
        kind: "lora": adds ``scale * B @ A``; "ia3": multiplies; "replace", "add": has it anew.
        parts: names of its tensors: B and A, the factors, or the tensor.
        rank: rank of the product.
        scale: scale of the product.
        transposed: the base has the product's transpose.
    """

    kind: str
    parts: tuple[str, ...]
    rank: int | None = None
    scale: float | None = None
    transposed: bool = False


class Adapter(msgspec.Struct, frozen=True):
    """What an adapter changes, by name of the base's tensor; `other` are of unknown kinds."""

    method: str
    changes: dict[str, AdapterChange]
    other: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The details of its edge."""
        details: dict[str, Any] = as_plain(msgspec.to_builtins(self))
        return details

    @property
    def text(self) -> str:
        """For people."""
        kinds = Counter(change.kind for change in self.changes.values())
        adapted = [name for name, one in self.changes.items() if one.kind in (LORA, IA3)]
        modules = {_module(name) for name in adapted}
        phrases = [self.method]
        phrases += _span("rank", (one.rank for one in self.changes.values()))
        phrases += _span("scale", (one.scale for one in self.changes.values()))
        if adapted:
            named = ", ".join(sorted(modules)[:_SHOWN]) + (", ..." if len(modules) > _SHOWN else "")
            phrases.append(f"{counted(len(adapted), 'tensor')} of {named}")
        phrases += [f"{kinds[REPLACE]:,} replaced"] if kinds[REPLACE] else []
        phrases += [f"{kinds[ADD]:,} added"] if kinds[ADD] else []
        phrases += [f"{len(self.other):,} of unknown meaning"] if self.other else []
        return ", ".join(phrases)


def adapter_of(lineage: Iterable[ProvenanceEdge]) -> tuple[ProvenanceEdge, Adapter] | None:
    """The edge to an adapter's base, and what it changes of it; None for other models."""
    return details_of((edge for edge in lineage if edge.details), ADAPTER_OF, Adapter)


def _module(tensor: str) -> str:
    """What the module of a tensor is called, without its number."""
    return next((one for one in tensor.split(".")[-2::-1] if not one.isdecimal()), tensor)


def _span(word: str, values: Iterable[float | None]) -> Sequence[str]:
    distinct = sorted({value for value in values if value is not None})
    if not distinct:
        return ()
    return (f"{word} {distinct[0]:g}" + (f" to {distinct[-1]:g}" if len(distinct) > 1 else ""),)


_PARTS: Final = {LORA: 2, IA3: 1, REPLACE: 1, ADD: 1}  # how many tensors of the adapter each takes


def adapt(recipe: Recipe, adapters: Sequence[StoredModel], base: StoredModel) -> Blend:
    """The tensors of a base with adapters put into it one after the other, as a recipe says.

    Its weights, one for each adapter, and its scale multiply the adapters' own.

    Raises:
        InvalidInputError: one is no adapter, or was declared of another model.
        UnsupportedError: one changes the base in a way that is not known here.
        CorruptError: what one was declared to change is not what it holds.
    """
    steps: dict[str, list[_Step]] = {}
    anew: dict[str, TensorReader] = {}
    for model, weight in zip(adapters, recipe.weights, strict=True):
        for name, change in _declared(model, base, strict=recipe.strict).changes.items():
            share = weight * recipe.scale
            _check_change(name, change, model)
            if change.kind in (REPLACE, ADD):
                anew[name] = model.tensor(change.parts[0])
                continue
            if change.kind == IA3 and share != 1:
                raise InvalidInputError(
                    f"an adapter of {name!r} multiplies (IA3): its weight and the scale are 1, got "
                    f"{share}"
                )
            parts = [model.tensor(part) for part in change.parts]
            own = base.aliases.get(name, name)
            scale = 1.0 if change.scale is None else change.scale
            steps.setdefault(own, []).append(_Step(change, share * scale, parts))
    _check_there(steps, base)
    tensors: dict[str, TensorReader] = {
        name: _AdaptedTensor(base.tensor(name), steps[name]) if name in steps else base.tensor(name)
        for name in base.tensors
    }
    keepers: dict[str, str] = {}  # of ties: a replaced tensor is tied to nothing
    for name in sorted(set(base) - set(anew)):
        keepers.setdefault(base.aliases.get(name, name), name)
    ties = {
        name: keepers[own]
        for name, own in base.aliases.items()
        if name not in anew and keepers[own] != name
    }
    kept = {keeper: tensors[own] for own, keeper in keepers.items()}
    return Blend({**kept, **anew}, ties, ())


def _declared(model: StoredModel, base: StoredModel, *, strict: bool) -> Adapter:
    found = adapter_of(model.lineage)
    if found is None:
        raise InvalidInputError(
            f"model {model.entry.digest:.12} is no adapter, or was stored without its base: store "
            "it with --adapter-of BASE, in Python save_model(..., adapter_of=...)"
        )
    edge, adapter = found
    if adapter.other:
        raise UnsupportedError(
            f"adapter {model.entry.digest:.12} has tensors of a kind that cannot be put into a "
            f"base here: {adapter.other[0]!r} and {len(adapter.other) - 1} more ({adapter.method})"
        )
    if strict and edge.digest != base.entry.digest:
        raise InvalidInputError(
            f"adapter {model.entry.digest:.12} is of {edge.path} ({edge.digest:.12}), not of model "
            f"{base.entry.digest:.12}. --lenient, in Python strict=False, takes any base that fits"
        )
    return adapter


def _check_change(name: str, change: AdapterChange, model: StoredModel) -> None:
    """Whether a change is one that is known here, of tensors that the adapter has."""
    if change.kind not in _PARTS:
        raise UnsupportedError(
            f"adapter {model.entry.digest:.12} changes {name!r:.80} by {change.kind!r:.40}, which "
            "is unknown here. Update tensorrepo."
        )
    there = [part for part in change.parts if part in model]
    if len(change.parts) != _PARTS[change.kind] or there != list(change.parts):
        raise CorruptError(
            f"adapter {model.entry.digest:.12}, {name!r:.80}: {change.kind!r} is of "
            f"{_PARTS[change.kind]} of its tensors, declared are {list(change.parts)!s:.200}"
        )


def _check_there(steps: dict[str, list[_Step]], base: StoredModel) -> None:
    for name, listed in steps.items():
        shape = base.spec(name).shape if name in base else ()
        if shape and base.spec(name).type.name not in ROUNDABLE:
            raise InvalidInputError(
                f"tensor {name!r} of the base is {base.spec(name).type.name}: nothing can be added "
                "to it. Give the base that is not quantised"
            )
        for step in listed:
            if not step.fits(shape):
                raise InvalidInputError(
                    f"tensor {name!r} of the base has shape {list(shape)}, which an adapter does "
                    "not fit"
                )


@dataclass(frozen=True, slots=True)
class _Step:
    """What one adapter does to a tensor."""

    change: AdapterChange
    scale: float
    parts: Sequence[TensorReader]

    def fits(self, shape: tuple[int, ...]) -> bool:
        shapes = [tuple(part.shape) for part in self.parts]
        if not shape or not all(shapes):
            return False
        if self.change.kind == LORA:
            made = shapes[0][:1] + shapes[1][1:]
            same_rank = prod(shapes[0][1:]) == shapes[1][0]
            return same_rank and (made[::-1] if self.change.transposed else made) == shape
        rows, *columns = shapes[0][::-1] if self.change.transposed else shapes[0]
        return (rows, prod(columns)) in {(shape[0], 1), (1, prod(shape[1:2]))}

    def whole(self) -> _Loaded:
        """With its factors in memory."""
        values = [_values(part) for part in self.parts]
        if self.change.kind != LORA:
            turned = values[0].T if self.change.transposed else values[0]
            return _Loaded(self, turned, turned)
        left = values[0].reshape(len(values[0]), -1)
        right = values[1].reshape(len(values[1]), -1)
        if self.change.transposed:
            left, right = right.T, left.T
        return _Loaded(self, left, right)


@dataclass(frozen=True, slots=True)
class _Loaded:
    step: _Step
    left: Values
    right: Values

    def apply(self, block: Values, first: int) -> Values:
        """Rows from `first` on, as they are after this step."""
        rows = slice(first, first + len(block))
        if self.step.change.kind == LORA:
            delta = np.zeros_like(block)
            for rank in range(self.right.shape[0]):
                delta += self.left[rows, rank, None] * self.right[rank, None, :]
            return block + delta * self.step.scale
        scales = self.left.reshape(self.left.shape[0], -1)
        if scales.shape[0] > 1:
            return block * scales[rows]
        inside = block.reshape(len(block), scales.shape[1], -1)
        scaled: Values = inside * scales[0][None, :, None]
        return scaled.reshape(block.shape)


@dataclass(frozen=True, slots=True)
class _AdaptedTensor:
    """A `TensorReader` of a tensor as adapters change it. Thread-safe."""

    base: TensorReader
    steps: Sequence[_Step]

    @property
    def type(self) -> TensorType:
        return self.base.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        loaded = [step.whole() for step in self.steps]
        size = self.type.block_bytes
        columns = prod(self.shape[1:])
        step = frame_bytes(self.type)
        for at in range(0, buffer.nbytes, step):
            part = buffer[at : at + step]
            first, last = (start_byte + at) // size, (start_byte + at + part.nbytes) // size
            rows = first // columns, -(-last // columns)
            block = self._rows(*rows, columns)
            for one in loaded:
                block = one.apply(block, rows[0])
            wanted = block.reshape(-1)[first - rows[0] * columns : last - rows[0] * columns]
            np.frombuffer(part, np.uint8)[:] = rounded(np.ascontiguousarray(wanted), self.type)

    def _rows(self, first: int, stop: int, columns: int) -> Values:
        """Whole rows: a frame may begin and end within one."""
        row = columns * self.type.block_bytes
        values = read_numbers(self.base, first * row, (stop - first) * row)
        assert values is not None, "what is adapted is a number"
        return values.reshape(stop - first, columns)


def _values(tensor: TensorReader) -> Values:
    values = read_numbers(tensor, 0, tensor.type.bytes_of(tuple(tensor.shape)))
    if values is None:
        raise UnsupportedError(f"an adapter's factor is of type {tensor.type.name}: no numbers")
    return values.reshape(tuple(tensor.shape))


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


def declare(base: StoredModel, source: ModelSource, scale: float | None = None) -> Adapter:
    """What an adapter that is to be stored changes of its base.

    Args:
        base: what it was trained on top of.
        source: the adapter. Its config is among its files, or `adapter_config` of its metadata.
        scale: scale of all its products; None: as the config, or its own tensors, say.

    Raises:
        InvalidInputError: it does not fit the base, or nobody says its scale.
    """
    if scale is not None and not (isinstance(scale, int | float) and isfinite(scale)):
        raise InvalidInputError(f"an adapter's scale is a finite number, got {scale!r:.40}")
    config, tensors = _config_of(source), source.named()
    method = str(config.get("peft_type") or "").lower()
    if method not in ("", *_METHODS):
        return Adapter(method, {}, tuple(sorted(tensors)))
    changes = _Finder(base, tensors, config, scale).changes()
    other = tuple(sorted(name for name in tensors if _OTHER.fullmatch(name)))
    if not other and all(change.kind == ADD for change in changes.values()):
        raise InvalidInputError(
            f"none of the adapter's {len(tensors)} tensors is of the base: {_listed(tensors)}. "
            "Names are compared without PEFT's 'base_model.model.'; the base has "
            f"{_listed(base)}"
        )
    kinds = {change.kind for change in changes.values()}
    method = method or next((kind for kind in _METHODS if kind in kinds), "other")
    return Adapter(method, changes, other)


def _config_of(source: ModelSource) -> Mapping[str, Any]:
    """PEFT's config of an adapter, empty where there is none."""
    config = source.metadata.get("adapter_config")
    if CONFIG_FILE in source.files:
        try:
            config = from_json(content_of(source.files[CONFIG_FILE]), Any)
        except msgspec.DecodeError as error:
            raise InvalidInputError(f"{CONFIG_FILE}: {error}") from error
    if config is not None and not isinstance(config, dict):
        raise InvalidInputError(f"{CONFIG_FILE}: expected an object, got {config!r:.40}")
    return config or {}


class _Finder:
    """Looks for what tensors do, by their names."""

    def __init__(
        self,
        base: StoredModel,
        tensors: Mapping[str, TensorReader],
        config: Mapping[str, Any],
        scale: float | None,
    ) -> None:
        self._base, self._tensors, self._config, self._scale = base, tensors, config, scale
        self._swapped = bool(config.get("fan_in_fan_out"))
        self._flat = {name.removesuffix(".weight").replace(".", "_"): name for name in base}

    def changes(self) -> dict[str, AdapterChange]:
        found: dict[str, AdapterChange] = {}
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
                found[plain] = AdapterChange(kind=kind, parts=(name,))
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
    ) -> tuple[str, AdapterChange]:
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
        return target, AdapterChange(
            kind=LORA,
            parts=(sides[False], sides[True]),
            rank=rank,
            scale=self._scale_of(module, rank),
            transposed=transposed,
        )

    def _scaled(self, module: str, name: str) -> Iterator[tuple[str, AdapterChange]]:
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
        change = AdapterChange(kind=IA3, parts=(name,), transposed=self._swapped)
        yield target, change
        bias = target.removesuffix(".weight") + ".bias"
        # What is multiplied behind the layer multiplies its bias, too.
        if (
            given[0] != 1
            and bias in self._base
            and prod(self._base.spec(bias).shape) == prod(given)
        ):
            yield bias, AdapterChange(kind=IA3, parts=(name,))

    def _target(self, module: str) -> str:
        """The base's tensor that a module of the adapter is for."""
        plain = _plain(module)
        for name in (f"{plain}.weight", plain, self._flat.get(plain)):
            if name is not None and name in self._base:
                return self._base.aliases.get(name, name)
        # One of both may be wrapped in another module.
        ends, whole = (f".{plain}.weight", f".{plain}"), f"{plain}.weight"
        targets = {
            self._base.aliases.get(one, one)
            for one in self._base
            if one.endswith(ends) or whole.endswith(f".{one}")
        }
        if len(targets) != 1:
            raise InvalidInputError(
                f"the adapter is for {plain!r}, "
                + (
                    f"which may be {_listed(sorted(targets))}"
                    if targets
                    else "which the base has not"
                )
                + f": it has {_listed(self._base)}"
            )
        return targets.pop()

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
            value = read_numbers(own, 0, own.type.bytes_of(tuple(own.shape)))
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
