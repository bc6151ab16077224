"""Patterns of nodes: globs on names and operations, and operations as DQL calls them.

All become regular expressions of RE2, which takes no longer than the text is long.

    conv[1,3,5]     one of those: conv1, conv3, conv5
    conv[1-4]       one character of those; [!a-z] one that is none of them
    fc?  layer*     one character; any number of characters
    conv*($1)       what the star stood for is called $1
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.query.architecture import fitting
from tensorrepo.query.dql.statements import Operation
from tensorrepo.repo.errors import InvalidInputError

MAX_PATTERN: Final = 500  # characters
_PART = re.compile(r"(?P<any>[*?]|\[[^\[\]]*\])(?:\(\$(?P<group>[1-9])\))?|(?P<text>[^*?\[]+|\[)")
_GROUP = re.compile(r"\$([1-9])")
_CLASS = re.compile(r"!?[\w.\-]+", re.ASCII)

# Operations have a name by each source of graphs: Conv, conv2d, aten.conv2d.default, Conv2d. These
# are what papers call them, as a pattern on a normal form of all. {0}: the first argument, if any.
_FAMILIES: Final = {
    "pool": ".*{0}.*pool.*",
    "conv": ".*conv.*",
    "norm": ".*{0}.*norm.*",
    "batchnorm": ".*batchnorm.*",
    "layernorm": ".*layernorm.*",
    "full": "linear|gemm|addmm|matmul|innerproduct",
    "linear": "linear|gemm|addmm|matmul|innerproduct",
    "relu": "relu6?",
    "softmax": ".*softmax.*",
    "dropout": ".*dropout.*",
    "embedding": ".*embedding.*",
    "attention": ".*attention.*",
    "concat": "concat|cat",
}
_ALSO: Final = {
    "fc": "full", "ip": "full", "innerproduct": "full", "dense": "full", "bn": "batchnorm",
    "ln": "layernorm", "convolution": "conv", "pooling": "pool", "cat": "concat",
}  # fmt: skip
_KINDS: Final = ("pool", "norm")  # whose first argument says which kind, such as MAX


def glob_regex(pattern: str) -> str:
    """A glob as a regular expression that fits a whole text.

    Raises:
        InvalidInputError: it is too long, or names a group twice.
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidInputError(f"a pattern of nodes has at most {MAX_PATTERN} characters")
    made, groups = [], set[str]()
    for part in _PART.finditer(pattern):
        if part["any"] is None:
            made.append(_escaped(part["text"]))
            continue
        piece = {"*": ".*", "?": "."}.get(part["any"]) or _bracket(part["any"][1:-1], pattern)
        if (group := part["group"]) is None:
            made.append(piece)
            continue
        if group in groups:
            raise InvalidInputError(f"pattern {pattern!r:.80}: ${group} is given twice")
        groups.add(group)
        made.append(f"(?P<g{group}>{piece})")
    return "".join(made)


def like_regex(pattern: str) -> str:
    """SQL's LIKE, where % is any number of characters and _ is one, as a regular expression."""
    words = {"%": ".*", "_": "."}
    return "(?s:" + "".join(words.get(one) or _escaped(one) for one in pattern) + ")"


def groups_of(names: Iterable[str], pattern: str) -> dict[str, dict[str, str]]:
    """What ``$1`` and the like stand for in each name that fits a glob."""
    fits = sorted(fitting(names, glob_regex(pattern)))
    groups = sorted(set(_GROUP.findall(pattern)))
    if not groups or not fits:
        return {name: {} for name in fits}
    found = pc.extract_regex(pa.array(fits, pa.string()), f"^(?:{glob_regex(pattern)})$")
    return {
        name: {group: str(row[f"g{group}"]) for group in groups}
        for name, row in zip(fits, found.to_pylist(), strict=True)
    }


def filled(template: str, groups: Mapping[str, str], of: str) -> str:
    """A name with what its ``$1`` stand for. `of` is the pattern that has them."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in groups:
            raise InvalidInputError(f"name {template!r:.80}: pattern {of!r:.80} has no ${found[1]}")
        return groups[found[1]]

    return _GROUP.sub(value, template)


def normal_operation(op: str) -> str:
    """``aten.max_pool2d.default``, ``MaxPool2d`` and ``max_pool2d`` as one word."""
    parts = op.split(".")
    word = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]
    return "".join(one for one in word.lower() if one.isalnum())


def operation_regex(operation: Operation) -> str:
    """What the normal form of an operation has to fit."""
    family = _family(operation.name)
    told = normal_operation(operation.argument or "") if family in _KINDS else ""
    return _FAMILIES.get(family, _escaped(family)).format(_escaped(told))


def name_glob(operation: Operation) -> str | None:
    """The name that an operation's first argument asks for; None: any."""
    return None if _family(operation.name) in _KINDS else operation.argument


def settings_fit(operation: Operation, attributes: Mapping[str, Any]) -> bool:
    """Whether a node's configuration has the settings that are asked for."""
    return all(
        key in attributes and json.dumps(attributes[key]) == json.dumps(_plain(value))
        for key, value in operation.settings
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _family(name: str) -> str:
    word = normal_operation(name)
    return _ALSO.get(word, word)


def _bracket(inside: str, pattern: str) -> str:
    if "," in inside:
        return f"(?:{'|'.join(_escaped(each.strip()) for each in inside.split(','))})"
    if not _CLASS.fullmatch(inside):
        raise InvalidInputError(
            f"pattern {pattern!r:.80}: [{inside}] is none of [1,3,5], [1-4] and [!a-z]"
        )
    return f"[{'^' if inside[0] == '!' else ''}{inside.removeprefix('!')}]"


def _escaped(text: str) -> str:
    """`text` as RE2 takes it literally: re.escape is of Python's own."""
    return "".join(one if one.isalnum() or one == "_" else f"\\x{{{ord(one):x}}}" for one in text)
