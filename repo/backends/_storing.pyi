from tensorrepo.repo.ids import Buffer

def store(
    root: bytes,
    temporary: str,
    folders: tuple[str, ...],
    synced: int,
    files: tuple[tuple[int, str, bytes], ...],
    steps: bytearray = ...,
    /,
) -> tuple[bytes, int, int, int]: ...
def write(fd: int, parts: list[Buffer], piece_bytes: int, /) -> None: ...
