"""Headers of the safetensors files that an index names: read of the stored files alone."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from tensorrepo.api.huggingface.hub_files import HubCommit, HubFile
from tensorrepo.formats.exchange.checkpoints.safetensors import MAX_HEADER_BYTES
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.typed_decoding import from_json

_MOST_SHARDS: Final = 1000
_MOST_INDEX: Final = 64 << 20


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = {}


def read_headers(commit: HubCommit, index: str) -> dict[str, Any]:
    """The index's metadata, and the header of every file that it names.

    Raises:
        NotFoundError: the index, or a file that it names, is not there.
        InvalidInputError: it is no index, or a file is no safetensors.
    """
    file = commit.find(index)
    if file.size_bytes > _MOST_INDEX:
        raise InvalidInputError(f"{index!r:.120} is too large for an index of weights")
    try:
        found = from_json(file.whole(), _Index)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInputError(f"{index!r:.120} is no index of weights: {error}") from error
    names = sorted(set(found.weight_map.values()))
    if len(names) > _MOST_SHARDS:
        raise InvalidInputError(f"{index!r:.120} names {len(names)} files, at most {_MOST_SHARDS}")
    above = PurePosixPath(index).parent
    headers = {name: _header(commit.find((above / name).as_posix())) for name in names}
    told = {"metadata": found.metadata, "weight_map": found.weight_map}
    return {"index": told, "headers": headers}


def _header(file: HubFile) -> Any:
    start = b"".join(file.pieces(0, min(8, file.size_bytes)))
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(MAX_HEADER_BYTES, file.size_bytes - 8):
        raise InvalidInputError(f"{file.path!r:.120} is no safetensors file")
    try:
        return from_json(b"".join(file.pieces(8, 8 + length)), Any)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInputError(f"{file.path!r:.120} is no safetensors file") from error
