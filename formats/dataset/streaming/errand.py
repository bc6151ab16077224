"""What does a process of its own do for a stream?

It makes the stream again, at the same place, and iterates over it with threads.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tensorrepo.formats.dataset.streaming.batching.outputs import Output
    from tensorrepo.formats.dataset.streaming.batching.process import Made


@dataclass(frozen=True, slots=True)
class Errand:
    """Every `turns`-th step from `state` on, beginning with number `turn`."""

    remake: Callable[..., Any]  # gives a stream
    output: Output
    state: dict[str, Any]
    turn: int
    turns: int

    def __call__(self) -> Generator[Made, None, None]:
        # A GPU, and memory for it, belong to the process that trains: JAX never starts here.
        output = "numpy" if self.output == "jax" else self.output
        found = self.remake(workers="thread", output=output, pin=False)
        found.load_state_dict(self.state)
        with closing(found.in_turn(self.turn, self.turns, quiet=True)) as items:
            for item in items:
                yield found.position, item, asdict(found.stats())
