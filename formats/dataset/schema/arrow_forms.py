"""Physical Arrow types: the several forms in which Arrow holds values of one logical type.

Text is `string`, `large_string`, `string_view` or a dictionary of these; a list has offsets of 32
or 64 bits. A column keeps which one its source had, as JSON, and gives rows out in it. Values
themselves are stored and compared in one form, the canonical one.

Source:
    docs/spec/dataset.md, section "Arrow forms".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.dtypes import Bools
from tensorrepo.formats.dataset.schema.types import MAX_DEPTH, MAX_DIGITS
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

_PLAIN: Final[dict[str, pa.DataType]] = {
    str(kind): kind
    for kind in (
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(),
        pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
        pa.binary_view(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"),
        pa.time64("us"), pa.time64("ns"), *map(pa.duration, ("s", "ms", "us", "ns")),
    )
}  # fmt: skip
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_ANY_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_LISTS: Final[dict[str, tuple[Callable[[Any], bool], Callable[[pa.Field], pa.DataType]]]] = {
    "list": (pa.types.is_list, pa.list_),
    "large_list": (pa.types.is_large_list, pa.large_list),
    "list_view": (pa.types.is_list_view, pa.list_view),
    "large_list_view": (pa.types.is_large_list_view, pa.large_list_view),
}
# Of Arrow's canonical extensions those that are nothing but a name for their storage.
_EXTENSIONS: Final[dict[str, pa.DataType]] = {
    each.extension_name: each for each in (pa.uuid(), pa.bool8(), pa.json_())
}


def is_text(arrow: pa.DataType) -> bool:
    return any(test(arrow) for test in _TEXTS)


def is_bytes(arrow: pa.DataType) -> bool:
    """Whether values are bytes of any number, or of a fixed one."""
    return bool(pa.types.is_fixed_size_binary(arrow)) or any(test(arrow) for test in _ANY_BYTES)


def is_list(arrow: pa.DataType) -> bool:
    """Whether rows are lists of any length."""
    return any(test(arrow) for test, _ in _LISTS.values())


def canonical(arrow: pa.DataType) -> pa.DataType:  # noqa: PLR0911  one return for each kind
    """The form in which values of an Arrow type are stored and compared.

    Offsets of 64 bits, no dictionaries, days as date32, the shorter decimal that holds all digits,
    fields that may be null.
    """
    if isinstance(arrow, pa.BaseExtensionType):
        return canonical(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return canonical(arrow.value_type)
    if is_text(arrow):
        return pa.large_string()
    if any(test(arrow) for test in _ANY_BYTES):
        return pa.large_binary()
    if pa.types.is_date64(arrow):
        return pa.date32()
    if pa.types.is_decimal(arrow):
        return decimal_type(arrow.precision, arrow.scale)
    if is_list(arrow):
        return pa.large_list(canonical(arrow.value_type))
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(canonical(arrow.value_type), arrow.list_size)
    if pa.types.is_struct(arrow):
        return pa.struct([(each.name, canonical(each.type)) for each in arrow.fields])
    if pa.types.is_map(arrow):
        return pa.map_(canonical(arrow.key_type), canonical(arrow.item_type))
    return arrow


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Arrow's decimal of 128 bits where it holds so many digits, else of 256."""
    make = pa.decimal128 if precision <= _DECIMAL128_DIGITS else pa.decimal256
    return make(precision, scale)


_DECIMAL128_DIGITS = 38


# ------------------------------------------------------------------------------ as JSON


def form_to_json(arrow: pa.DataType) -> Any:  # noqa: PLR0911  one return for each kind
    """The JSON form: ``"string"``, ``{"list": ["item", "int64", true]}``.

    Raises:
        UnsupportedError: a type that no column has.
    """
    types = pa.types
    if str(arrow) in _PLAIN and not isinstance(arrow, pa.BaseExtensionType):
        return str(arrow)
    if isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name in _EXTENSIONS:
        return {"extension": arrow.extension_name}
    if types.is_fixed_size_binary(arrow):
        return {"fixed_size_binary": arrow.byte_width}
    if types.is_timestamp(arrow):
        return {"timestamp": [arrow.unit, arrow.tz]}
    if types.is_decimal(arrow):
        return {"decimal": [arrow.bit_width, arrow.precision, arrow.scale]}
    if types.is_dictionary(arrow):
        return {"dictionary": form_to_json(arrow.value_type)}
    if types.is_fixed_size_list(arrow):
        return {"fixed_size_list": [_field_to_json(arrow.value_field), arrow.list_size]}
    if types.is_struct(arrow):
        return {"struct": [_field_to_json(each) for each in arrow.fields]}
    if types.is_map(arrow):
        pair = [_field_to_json(arrow.key_field), _field_to_json(arrow.item_field)]
        return {"map": [*pair, arrow.keys_sorted]}
    for name, (test, _) in _LISTS.items():
        if test(arrow):
            return {name: _field_to_json(arrow.value_field)}
    raise UnsupportedError(f"no column holds Arrow's {arrow}")


def form_from_json(form: Any) -> pa.DataType:
    """The Arrow type that `form_to_json` wrote.

    Raises:
        InvalidInputError: not the form of an Arrow type.
    """
    try:
        return _from_json(form, 0)
    except (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException) as error:
        raise InvalidInputError(f"not an Arrow type: {form!r:.120}") from error


def _field_to_json(field: pa.Field) -> list[Any]:
    return [field.name, form_to_json(field.type), field.nullable]


def _field_from_json(form: Any, depth: int) -> pa.Field:
    name, kind, nullable = form
    if not isinstance(name, str) or not isinstance(nullable, bool):
        raise TypeError(name)
    return pa.field(name, _from_json(kind, depth), nullable)


def _from_json(form: Any, depth: int) -> pa.DataType:  # noqa: PLR0911  one return for each kind
    if depth > MAX_DEPTH or not isinstance(form, str | dict):
        raise ValueError(depth)
    if isinstance(form, str):
        return _PLAIN[form]
    ((name, what),) = form.items()
    if name in _LISTS:
        return _LISTS[name][1](_field_from_json(what, depth + 1))
    match name, what:
        case "extension", str():
            return _EXTENSIONS[what]
        case "fixed_size_binary", int(size):
            return pa.binary(_size(size))
        case "timestamp", [str(unit), zone]:
            return pa.timestamp(unit, zone)
        case "decimal", [int(bits), int(precision), int(scale)]:
            return _DECIMALS[bits](precision, scale)
        case "dictionary", value:
            return pa.dictionary(pa.int32(), _from_json(value, depth + 1))
        case "fixed_size_list", [field, int(size)]:
            return pa.list_(_field_from_json(field, depth + 1), _size(size))
        case "struct", [*fields]:
            return pa.struct([_field_from_json(each, depth + 1) for each in fields])
        case "map", [key, item, bool(keys_sorted)]:
            pair = (_field_from_json(each, depth + 1) for each in (key, item))
            return pa.map_(*pair, keys_sorted)
    raise ValueError(name)


def _size(size: int) -> int:
    if not 1 <= size < 1 << 31:
        raise ValueError(size)
    return size


_DECIMALS = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}


def kept_form(arrow: pa.DataType) -> pa.DataType:
    """The form that is kept of a foreign type: the same, indices of dictionaries as int32.

    A dictionary grows with the rows that are added, beyond what 8 bits count, and has its values
    in the order in which rows come. Parquet reads indices as int32, too. Arrow neither looks up nor
    casts a dictionary of views, as polars has them: its values are kept as text or bytes.
    """
    types = pa.types
    if isinstance(arrow, pa.JsonType):
        return pa.json_()  # whichever text it is held in
    if types.is_dictionary(arrow):
        is_view = _is_view(arrow.value_type)
        value = canonical(arrow.value_type) if is_view else kept_form(arrow.value_type)
        return pa.dictionary(pa.int32(), value)
    if types.is_struct(arrow):
        return pa.struct([_kept_field(each) for each in arrow.fields])
    if types.is_map(arrow):
        return pa.map_(*map(_kept_field, (arrow.key_field, arrow.item_field)), arrow.keys_sorted)
    if types.is_fixed_size_list(arrow):
        return pa.list_(_kept_field(arrow.value_field), arrow.list_size)
    for test, make in _LISTS.values():
        if test(arrow):
            return make(_kept_field(arrow.value_field))
    return arrow


def _kept_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, kept_form(field.type), field.nullable)


# ------------------------------------------------------------------------------ from form to form


def reform(array: pa.Array, target: pa.DataType) -> pa.Array:  # noqa: PLR0911  one return for each kind
    """`array` as `target`, another form of the same type or one that holds its values.

    Raises:
        pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError: `target` does not hold all
            values, as offsets of 32 bits do not hold 2 GiB of text.
    """
    types = pa.types
    if array.type == target:
        return array
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, reform(array, target.storage_type))
    if isinstance(array, pa.ExtensionArray):
        return reform(array.storage, target)
    if types.is_dictionary(array.type):
        return reform(without_dictionary(array), target)
    if types.is_dictionary(target):
        coded = reform(array, target.value_type).dictionary_encode()
        indices = coded.indices.cast(target.index_type)
        return pa.DictionaryArray.from_arrays(indices, coded.dictionary)
    if types.is_null(array.type):
        return pa.nulls(len(array), target)
    if types.is_struct(target):
        return _reform_struct(array, target)
    if types.is_map(target):
        return _reform_map(array, target)
    if types.is_fixed_size_list(target):
        return _reform_fixed(array, target)
    if is_list(target):
        return _reform_list(array, target)
    return _cast(array, target)


def _is_view(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(arrow) or pa.types.is_binary_view(arrow))


def without_dictionary(array: pa.DictionaryArray) -> pa.Array:
    """The values that rows of a dictionary name; of views they are copied, as Arrow takes none."""
    values = array.dictionary
    if _is_view(values.type):
        array = pa.DictionaryArray.from_arrays(array.indices, values.cast(canonical(values.type)))
    return array.dictionary_decode()


def fixed_lists(values: pa.Array, target: pa.DataType, nulls: pa.Array | None) -> pa.Array:
    """Rows of a fixed-size list; not by `from_arrays`, which infers the rows from the values."""
    rows = len(values) // target.list_size
    bits, count = None, 0
    if nulls is not None:
        valid = ~np.asarray(nulls)
        bits, count = pa.py_buffer(np.packbits(valid, bitorder="little")), int((~valid).sum())
    return pa.Array.from_buffers(target, rows, [bits], count, children=[values])


def with_required(array: pa.Array) -> pa.Array:
    """`array` without nulls in fields that must not be null, where they only stand under nulls.

    Nothing is stored of what lies under a null; Arrow and Parquet want a value there.
    """
    return _required(array, np.ones(len(array), np.bool_)) if _requires(array.type) else array


def _requires(kind: pa.DataType) -> bool:
    """Whether a field somewhere inside must not be null."""
    fields = [kind.field(at) for at in range(kind.num_fields)]
    return any(not each.nullable or _requires(each.type) for each in fields)


def _required(array: pa.Array, alive: Bools) -> pa.Array:
    """See `with_required`; rows that are not `alive` stand under a null."""
    types, kind = pa.types, array.type
    if not _requires(kind):
        return array
    if array.null_count:
        alive = alive & np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if types.is_struct(kind):
        parts = [_filled(array.field(at), each, alive) for at, each in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=_nulls(array))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        values = _filled(values, kind.value_field, np.repeat(alive, size))
        return fixed_lists(values, kind, _nulls(array))
    if types.is_map(kind):
        every = np.ones(len(array.items), np.bool_)
        keys, items = array.keys, _filled(array.items, kind.item_field, every)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls(array))
    if types.is_list(kind) or types.is_large_list(kind):
        values = _filled(array.values, kind.value_field, np.ones(len(array.values), np.bool_))
        return type(array).from_arrays(array.offsets, values, type=kind, mask=_nulls(array))
    return array


def _filled(array: pa.Array, field: pa.Field, alive: Bools) -> pa.Array:
    array = _required(array, alive)
    if field.nullable or not array.null_count:
        return array
    missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
    return array if (missing & alive).any() else _without_nulls(array)


def _without_nulls(array: pa.Array) -> pa.Array:
    """The same with whatever lies under its own nulls, which is zero or empty."""
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _without_nulls(array.storage))
    if types.is_dictionary(kind):
        indices = array.indices.fill_null(0) if len(array.dictionary) else array.indices
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)
    if types.is_struct(kind):
        parts = [array.field(at) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields)
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return fixed_lists(values, kind, None)
    if types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return type(array).from_arrays(array.offsets, array.values, type=kind)
    if types.is_null(kind) or types.is_nested(kind):
        return array
    _, *buffers = array.buffers()
    return pa.Array.from_buffers(kind, len(array), [None, *buffers], 0, array.offset)


def _reform_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    names = [each.name for each in target.fields]
    mine = [each.name for each in array.type.fields] if pa.types.is_struct(array.type) else []
    if sorted(mine) != sorted(names):
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    parts = [reform(array.field(mine.index(each.name)), each.type) for each in target.fields]
    return pa.StructArray.from_arrays(parts, fields=target.fields, mask=_nulls(array))


def _reform_map(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    offsets = np.asarray(array.offsets)
    start, stop = int(offsets[0]), int(offsets[-1])
    keys = reform(array.keys.slice(start, stop - start), target.key_type)
    items = reform(array.items.slice(start, stop - start), target.item_type)
    begun = pa.array(offsets - start, pa.int32())
    return pa.MapArray.from_arrays(begun, keys, items, type=target, mask=_nulls(array))


def _reform_fixed(array: pa.Array, target: pa.DataType) -> pa.Array:
    size = target.list_size
    if not pa.types.is_fixed_size_list(array.type) or array.type.list_size != size:
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    values = array.values.slice(array.offset * size, len(array) * size)
    return fixed_lists(reform(values, target.value_type), target, _nulls(array))


def _reform_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    offsets_of_its_own = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if pa.types.is_fixed_size_list(array.type) or (is_list(array.type) and not offsets_of_its_own):
        array = array.cast(pa.large_list(array.type.value_field))
    elif not is_list(array.type):
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    offsets = np.asarray(array.offsets, np.int64)
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    values, begun = reform(values, target.value_type), pa.array(offsets - offsets[0])
    if pa.types.is_list(target):
        narrow = begun.cast(pa.int32())
        return pa.ListArray.from_arrays(narrow, values, type=target, mask=_nulls(array))
    large = pa.large_list(target.value_field)
    lists = pa.LargeListArray.from_arrays(begun, values, type=large, mask=_nulls(array))
    return lists if target == large else lists.cast(target)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """One value each: by Arrow's own cast, but never into another kind of value."""
    if _family(array.type) != _family(target):
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    found = array.cast(target)
    if _family(target) == "moment" and not found.cast(array.type).equals(array):
        raise pa.ArrowInvalid(f"{array.type} has values within a day, {target} has none")
    return found


def _family(arrow: pa.DataType) -> str:
    """What values are, whatever they are held in: only within a family are they cast."""
    types = pa.types
    if is_text(arrow):
        return "text"
    if is_bytes(arrow):
        return "bytes"
    if types.is_decimal(arrow) or types.is_integer(arrow):
        return "number"
    if types.is_timestamp(arrow):
        return "moment" if arrow.tz is None else "zoned moment"
    if types.is_date(arrow):
        return "moment"
    return "time" if types.is_time(arrow) else str(arrow).partition("[")[0]


def _nulls(array: pa.Array) -> pa.Array | None:
    """A mask of the nulls, as Arrow's constructors take it."""
    return array.is_null() if array.null_count else None


def check_form(arrow: pa.DataType, name: str) -> None:
    """See that values of an Arrow type can be stored, whatever it stands in.

    Raises:
        UnsupportedError: names the column and the type.
    """
    why = _refusal(arrow, 1)
    if why:
        raise UnsupportedError(f"column {name!r}: {why}. Cast it, or leave it out.")


def has_form(arrow: pa.DataType) -> bool:
    """Whether an Arrow type is one that a column keeps as the form of its values."""
    return not _refusal(arrow, 1)


def _refusal(arrow: pa.DataType, depth: int) -> str:  # noqa: PLR0911  one return for each kind
    types = pa.types
    if depth > MAX_DEPTH:
        return f"types stand {depth} deep one in the other, at most {MAX_DEPTH} are held"
    if isinstance(arrow, pa.BaseExtensionType):
        known = arrow.extension_name in _EXTENSIONS
        return "" if known else f"no column type holds Arrow's extension {arrow.extension_name}"
    if types.is_dictionary(arrow):
        return _refusal(arrow.value_type, depth)
    if types.is_decimal(arrow):
        fits = 0 <= arrow.scale <= arrow.precision <= MAX_DIGITS
        return "" if fits else f"no column type holds Arrow's {arrow}: its scale is no share of it"
    if types.is_struct(arrow):
        names = [each.name for each in arrow.fields]
        if not names or len(set(names)) < len(names):
            return f"no column type holds Arrow's {arrow}: a struct has fields of different names"
        return next(filter(None, (_refusal(each.type, depth + 1) for each in arrow.fields)), "")
    if types.is_map(arrow):
        return _refusal(arrow.key_type, depth + 1) or _refusal(arrow.item_type, depth + 1)
    if is_list(arrow) or types.is_fixed_size_list(arrow):
        empty = types.is_fixed_size_list(arrow) and not arrow.list_size
        inner = _refusal(arrow.value_type, depth + 1)
        return inner or (f"no column type holds Arrow's {arrow}: its rows are empty" * empty)
    if types.is_fixed_size_binary(arrow):
        return "" if arrow.byte_width else "its rows are bytes of size 0"
    held = types.is_timestamp(arrow) or str(arrow) in _PLAIN
    return "" if held else f"no column type holds Arrow's {arrow}"
