from array import array
from mmap import mmap

def follow(
    rows: mmap | bytes, starts: array[int], owners: array[int], owner: int, links: bytes, /
) -> tuple[int, bytes, bytes]: ...
