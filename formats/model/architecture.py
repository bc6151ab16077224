"""Do two models have tensors of the same names, shapes and types?

Models of one architecture have one fingerprint, whatever their weights: candidates for a delta's
base, and for merging, are found by it.

Source:
    docs/spec/model-graph.md, section "Architecture fingerprint".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.formats.tensors import TensorType

_ARCHITECTURE: Final = blake3(derive_key_context="tensorrepo architecture v1")


class NamedShape(Protocol):
    """What of a tensor the architecture is made of."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def architecture_fingerprint(tensors: Iterable[NamedShape]) -> str:
    """64 hex digits: equal for equal sets of (name, shape, type), in any order.

    An alias counts as the tensor that it is one with: a file that names tied tensors twice, and
    one that does not, are two architectures.
    """
    rows = sorted((tensor.name, tuple(tensor.shape), tensor.type.name) for tensor in tensors)
    return _ARCHITECTURE.copy().update(msgspec.msgpack.encode(rows)).hexdigest()
