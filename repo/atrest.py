"""In which form do an object's bytes lie in a store?

Metadata is compressed where that pays; what is read by ranges is not. Names are taken over the
envelope itself, so they never depend on a compressor's version.

Source:
    docs/spec/objects.md, section "Compression at rest".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard

from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import EncodedObject

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COMPRESS_FROM_BYTES = 512
_COMPRESS_UPTO_BYTES = 64 << 20
_SMALLEST_STORED_BYTES = 64  # so that reading the first 32 bytes of any object works


def stored_form(encoded: EncodedObject) -> tuple[Buffer, ...]:
    """The bytes to store: metadata is zstd-compressed where that pays. Names never depend on it."""
    size = encoded.link.bytes
    compressible = encoded.link.kind.compressible
    if not compressible or not _COMPRESS_FROM_BYTES <= size <= _COMPRESS_UPTO_BYTES:
        return encoded.parts
    packed = zstandard.ZstdCompressor(level=3).compress(b"".join(encoded.parts))
    worth = _SMALLEST_STORED_BYTES <= len(packed) <= size * 7 // 8
    return (packed,) if worth else encoded.parts


def expand(data: bytes, digest: Digest) -> bytes:
    """The envelope's own bytes, of what was stored."""
    if data[:4] != ZSTD_MAGIC:
        return data
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= _COMPRESS_UPTO_BYTES:
            raise CorruptError(
                f"object {digest:.12}: its compressed form claims {size} bytes, at most "
                f"{_COMPRESS_UPTO_BYTES} are ever stored so"
            )
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptError(
            f"object {digest:.12}: its compressed form is damaged: {error}"
        ) from None
