def store(
    root: bytes,
    temporary: str,
    folders: tuple[str, ...],
    synced: int,
    files: tuple[tuple[int, str, bytes], ...],
    steps: bytearray = ...,
    /,
) -> tuple[bytes, int, int, int]: ...
