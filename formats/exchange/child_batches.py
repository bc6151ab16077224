"""Record batches on their way out of the importers' child process: files in memory, used again.

New pages of memory cost more than what is copied into them. So batches of the usual size go into
one of a few files in memory, which both processes keep mapped. The importing process copies out of
them, and says so, before it looks: nobody changes what it has validated. A larger batch gets a file
of its own, which is sealed and mapped.

Run as a script by `child_main`, which says why.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import tempfile
from struct import Struct

import pyarrow as pa

SLOTS = 3  # one is written while the batches ahead lie in the others
SLOT_BYTES = 16 << 20
if sys.platform == "linux":
    import fcntl

    # Nobody cuts it off under the other's feet.
    SLOT_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    # Nor changes what the importing process has validated.
    SEALS = SLOT_SEALS | fcntl.F_SEAL_WRITE


class BatchSender:
    """Sends batches, each as an Arrow stream in a file in memory.

    Args:
        frame: how a kind and a number of bytes are packed.
        alone: kind of a frame whose batch is all of the file that comes with it.
        placed: kind of a frame whose batch begins one of the files that are used again; its number
            follows, a byte. The file comes with the first frame that names it.
    """

    def __init__(self, frame: Struct, alone: int, placed: int) -> None:
        self._frame, self._alone, self._placed = frame, alone, placed
        self._slots: list[mmap.mmap] = []
        self._sent = 0  # in slots

    def send(self, answers: socket.socket, batch: pa.RecordBatch) -> None:
        """Send a batch. All but `SLOTS` - 1 of those before it must have been acknowledged."""
        if sys.platform != "linux" or not self._send_placed(answers, batch):
            self._send_alone(answers, batch)

    def _send_placed(self, answers: socket.socket, batch: pa.RecordBatch) -> bool:
        """Whether there was room for it in a slot."""
        size = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch)
        slot = self._sent % SLOTS
        if size > SLOT_BYTES:
            return False
        file = None if slot < len(self._slots) else _new_slot()
        try:
            place = mmap.mmap(file, SLOT_BYTES) if file is not None else self._slots[slot]
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(place))
            try:
                _write(sink, batch)
            except (pa.ArrowException, OSError):  # with dictionaries it is larger than its size
                return False
            _send(answers, self._frame.pack(self._placed, sink.tell()) + bytes([slot]), file)
            self._slots += [place] if file is not None else []
        finally:
            if file is not None:
                os.close(file)
        self._sent += 1
        return True

    def _send_alone(self, answers: socket.socket, batch: pa.RecordBatch) -> None:
        if sys.platform == "linux":
            file = os.memfd_create("batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            with tempfile.TemporaryFile() as named:
                file = os.dup(named.fileno())
        try:
            with pa.OSFile(f"/dev/fd/{file}", "wb") as sink:
                _write(sink, batch)
            if sys.platform == "linux":
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
            _send(answers, self._frame.pack(self._alone, os.fstat(file).st_size), file)
        finally:
            os.close(file)


def _new_slot() -> int:
    file = os.memfd_create("batches", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, SLOT_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SLOT_SEALS)
    return file


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _send(answers: socket.socket, frame: bytes, file: int | None) -> None:
    if file is None:
        answers.sendall(frame)
    elif socket.send_fds(answers, [frame], [file]) < len(frame):
        raise ConnectionError("a frame was sent in part")
