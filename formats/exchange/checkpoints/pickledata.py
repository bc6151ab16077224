"""What does a pickle say, without running it?

A pickle is a program for a small stack machine. This one builds plain values only: None, bool,
int, float, text, bytes, list, tuple, dict, and what the caller's own functions return. A global
is a name that the caller's `find` is asked about: it answers with a value or one of its own
`Function`s, or refuses. Nothing is imported, and nothing else is ever called.

Source:
    The opcodes are those of CPython's `pickletools`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    Find = Callable[[str, str], object]
    Persistent = Callable[[object], object]

_U2, _I4, _U4, _U8, _F8 = (Struct(code) for code in ("<H", "<i", "<I", "<Q", ">d"))
MAX_INT_BYTES: Final = 64  # nothing that we keep is longer than 8
MAX_STEPS: Final = 1 << 23  # a byte can make an empty dict of 64 bytes; no checkpoint is so long


@dataclass(frozen=True, slots=True)
class Function:
    """What a global stands for when the program may call it."""

    call: Callable[..., object]


class Record(dict[object, object]):
    """A dict that the program made as an OrderedDict: setting attributes of it is ignored."""


_MARK: Final = object()
_CONSTANTS: Final[dict[int, Callable[[], object]]] = {
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
    ord("}"): dict,
    ord("]"): list,
    ord(")"): tuple,
}
# Opcode: struct of the length or number that follows.
_NUMBERS: Final = {ord("K"): Struct("<B"), ord("M"): _U2, ord("J"): _I4, ord("G"): _F8}
_TEXTS: Final = {0x8C: Struct("<B"), ord("X"): _U4, 0x8D: _U8}
_BYTES: Final = {ord("C"): Struct("<B"), ord("B"): _U4, 0x8E: _U8}
_LONGS: Final = {0x8A: Struct("<B"), 0x8B: _I4}
_PUTS: Final = {ord("q"): Struct("<B"), ord("r"): _U4}
_GETS: Final = {ord("h"): Struct("<B"), ord("j"): _U4}
_TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}
_SKIPPED: Final = {0x80: 1, 0x95: 8}  # protocol, frame: bytes that follow
_STOP: Final = ord(".")


def load_pickle(data: bytes, find: Find, persistent: Persistent) -> object:
    """The value that the program `data` leaves.

    Args:
        data: the pickle, of protocol 2 or later.
        find: asked for the global of this module and name; raises InvalidInputError to refuse.
        persistent: asked for the value of a persistent id.

    Raises:
        InvalidInputError: not a pickle, or one that asks for more than plain values.
    """
    machine = _Machine(data, find, persistent)
    try:
        return machine.run()
    except IndexError as error:
        raise InvalidInputError(
            f"not a whole pickle: the program fails at byte {machine.at}"
        ) from error


def is_key(value: object) -> bool:
    """Whether a dict may have this key. Hashing anything nested could exhaust the C stack."""
    return isinstance(value, (str, int, float))


class _Machine:
    def __init__(self, data: bytes, find: Find, persistent: Persistent) -> None:
        self.at = 0
        self._data = data
        self._find = find
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, object] = {}
        # What functions may be given in all: a few bytes can hand one long list over many times.
        self._given_left = len(data)
        self._special: dict[int, Callable[[], None]] = {
            ord("("): lambda: self._stack.append(_MARK),
            ord("0"): self._drop,
            ord("t"): lambda: self._stack.append(tuple(self._pop_mark())),
            ord("a"): lambda: self._append([self._stack.pop()]),
            ord("e"): lambda: self._append(self._pop_mark()),
            ord("s"): lambda: self._set_items(self._pop(2)),
            ord("u"): lambda: self._set_items(self._pop_mark()),
            ord("c"): lambda: self._global(self._line(), self._line()),
            0x93: lambda: self._global(*self._pop(2)),
            0x94: lambda: self._put(len(self._memo)),
            ord("R"): self._reduce,
            ord("b"): self._build,
            ord("Q"): lambda: self._stack.append(self._persistent(self._stack.pop())),
        }

    def run(self) -> object:
        steps = 0
        while (code := self._take(1)[0]) != _STOP:
            self._step(code)
            steps += 1
            if steps > MAX_STEPS:
                raise self._refusal(f"a program of more than {MAX_STEPS} steps")
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise self._refusal(f"the program leaves {len(self._stack)} values")
        return self._stack[0]

    def _step(self, code: int) -> None:
        push = self._stack.append
        if code in self._special:
            self._special[code]()
        elif code in _CONSTANTS:
            push(_CONSTANTS[code]())
        elif code in _NUMBERS:
            push(self._number(_NUMBERS[code]))
        elif code in _PUTS:
            self._put(int(self._number(_PUTS[code])))
        elif code in _GETS:
            push(self._get(int(self._number(_GETS[code]))))
        elif code in _TEXTS:
            push(self._text(self._sized(_TEXTS[code])))
        elif code in _TUPLES:
            push(tuple(self._pop(_TUPLES[code])))
        elif code in _BYTES:
            push(self._sized(_BYTES[code]))
        elif code in _LONGS:
            push(self._long(self._sized(_LONGS[code])))
        elif code in _SKIPPED:
            self._take(_SKIPPED[code])
        else:
            raise self._refusal(f"opcode {chr(code)!r} (0x{code:02x}) is not allowed")

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise self._refusal("the pickle is cut short")
        start, self.at = self.at, self.at + size
        return self._data[start : self.at]

    def _number(self, form: Struct) -> int | float:
        value: int | float = form.unpack(self._take(form.size))[0]
        return value

    def _sized(self, form: Struct) -> bytes:
        return self._take(int(self._number(form)))

    def _line(self) -> str:
        end = self._data.find(b"\n", self.at, self.at + 1024)
        if end < 0:
            raise self._refusal("a name without end")
        text = self._text(self._take(end - self.at))
        self.at += 1
        return text

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._refusal(f"text that is no UTF-8: {error.reason}") from error

    def _long(self, data: bytes) -> int:
        if len(data) > MAX_INT_BYTES:
            raise self._refusal(f"an integer of {len(data)} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count or any(item is _MARK for item in self._stack[-count:]):
            raise self._refusal("too few values on the stack")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _pop_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def _drop(self) -> None:
        self._stack.pop()

    def _put(self, index: int) -> None:
        if self._stack[-1] is _MARK:
            raise self._refusal("nothing to remember")
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> object:
        if index not in self._memo:
            raise self._refusal(f"nothing was remembered as {index}")
        return self._memo[index]

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list) or any(item is _MARK for item in items):
            raise self._refusal(f"appends to a {type(target).__name__}")
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise self._refusal(f"sets items of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not is_key(key):
                raise self._refusal(f"a key that is a {type(key).__name__}")
            target[key] = value

    def _global(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self._refusal("a global whose name is no text")
        self._stack.append(self._find(module, name))

    def _reduce(self) -> None:
        function, arguments = self._pop(2)
        if not isinstance(function, Function) or not isinstance(arguments, tuple):
            raise self._refusal("calls what is no function")
        sized = (each for each in arguments if isinstance(each, (str, bytes, list, tuple, dict)))
        self._given_left -= len(arguments) + sum(map(len, sized))
        if self._given_left < 0:
            raise self._refusal("gives functions more than it has bytes")
        try:
            self._stack.append(function.call(*arguments))
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise self._refusal(f"calls a function with other arguments: {error}") from error

    def _build(self) -> None:
        """State dicts carry a note `_metadata` as an attribute; nothing needs it."""
        target, _ = self._pop(2)
        if not isinstance(target, Record):
            raise self._refusal(f"sets attributes of a {type(target).__name__}")
        self._stack.append(target)

    def _refusal(self, what: str) -> InvalidInputError:
        return InvalidInputError(f"byte {self.at} of the pickle: {what}")
