from tensorrepo.repo.ids import Buffer

fast: int

def check_frames(
    context: bytes, frames: list[Buffer], rooms: list[memoryview] | None, digests: bytes, /
) -> int: ...
def hash_frames(
    context: bytes, frames: list[Buffer], rooms: list[memoryview] | None, /
) -> bytes: ...
def hash_parts(context: bytes, parts: list[Buffer], /) -> bytes: ...
