"""A bundle read from docs/spec/bundle.md alone, all of it in memory."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from blake3 import blake3

OBJECT, BUNDLE = "tensorrepo object v1", "tensorrepo bundle v2"


def read_bundle(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The contents, and envelopes by digest; asserts all that the page promises.

    Frames are not expanded: of a bundle without any.
    """
    assert struct.unpack("<8sII", data[:16]) == (b"TRBUNDLE", 2, 0)
    at, count, size, digest, magic = struct.unpack("<QQQ32s8s", data[-64:])
    assert magic == b"TRBUNDLE"
    zeros = struct.pack("<QQQ32s8s", at, count, size, bytes(32), magic)
    whole = blake3(derive_key_context=BUNDLE).update(data[:-64]).update(zeros)
    assert whole.digest() == digest
    rows = [struct.unpack_from("<32sQQ", data, at + 48 * row) for row in range(count)]
    assert at + 48 * count + size + 64 == len(data)
    assert rows == sorted(rows)
    objects = {name.hex(): data[start : start + length] for name, start, length in rows}
    for name, stored in objects.items():
        assert blake3(derive_key_context=OBJECT).update(stored).hexdigest() == name
    assert sum(map(len, objects.values())) == at - 16
    contents = json.loads(data[at + 48 * count : -64])
    assert contents["version"] == 2
    assert set(contents["purges"]) == {"columns", "objects", "rows"}
    assert objects.keys() >= {*contents["refs"].values(), *contents["placements"].values()}
    assert objects.keys() >= contents["purges"]["rows"].keys()
    return contents, objects


def signed_words(text: str) -> tuple[str, dict[str, Any], bytes]:
    """A signature of a tag as docs/spec/log.md says that it travels: base64 of the signature, the
    words, and their bytes.
    """
    signature, _, words = text.partition(".")
    data = base64.b64decode(words, validate=True)
    return signature, json.loads(data), data
