"""ZipNN on one core: bytes and processor seconds; runs in the peers' environment.

Reads lines of JSON on standard input and answers each with one: ``{"what": "both", "file": PATH,
"dtype": "float32"}`` compresses the file's bytes and decompresses them again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from zipnn import ZipNN


def both(data: bytes, dtype: str) -> dict[str, float]:
    coder = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1)
    begun = time.process_time()
    packed = coder.compress(bytearray(data))
    between = time.process_time()
    found = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1).decompress(packed)
    ended = time.process_time()
    if bytes(found) != data:
        raise ValueError("ZipNN gave other bytes back")
    return {"bytes": len(packed), "encode": between - begun, "decode": ended - between}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints itself goes to standard error
    for line in sys.stdin:
        asked = json.loads(line)
        found = both(Path(asked["file"]).read_bytes(), asked["dtype"])
        answers.write(json.dumps({**found, "version": version("zipnn")}) + "\n")
        answers.flush()
