"""Recognition of model files by their first bytes.

Apart from the table of foreign formats, which reads rows: a service that keeps models needs none.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from tensorrepo.formats.common.damage import refusals
from tensorrepo.formats.exchange.checkpoints.zip_ranges import BAD_ZIP


def model_format(path: Path) -> str | None:
    """The model format of a file ("safetensors", "gguf", ...), by content where it tells."""
    with refusals(path, "file"), path.open("rb") as file:
        head = file.read(16)
        header_bytes = int.from_bytes(head[:8], "little")
        if head[8:9] == b"{" and header_bytes <= path.stat().st_size - 8:
            return "safetensors"
    if head.startswith(b"GGUF"):
        return "gguf"
    if path.suffix.lower() == ".onnx":  # a protobuf message has no mark
        return "onnx"
    if head.startswith(b"PK"):
        with refusals(path, "zip file", *BAD_ZIP), zipfile.ZipFile(path) as archive:
            return "torch" if any(n.endswith("data.pkl") for n in archive.namelist()) else None
    return None
