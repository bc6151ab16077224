"""The chain of the audit log: what was changed, dropped or made anew is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tensorrepo.api.access.tokens import make_token
from tensorrepo.api.audit.events import GENESIS, AuditEvent, Block, blocks_of_lines, verify
from tensorrepo.repo.errors import InvalidInputError


def chain(blocks: int = 4, actor: str = "ann") -> list[Block]:
    made: list[Block] = []
    for number in range(1, blocks + 1):
        events = [AuditEvent(number, "write", actor=actor, paths=(f"/{at}",)) for at in range(3)]
        previous = made[-1].hash if made else GENESIS
        made.append(Block.make(number, number, previous, [event.encode() for event in events]))
    return made


CHAIN = chain()
HEAD = (4, CHAIN[-1].hash)
TAMPERED: dict[str, Callable[[], list[Block]]] = {
    "an event changed": lambda: [
        CHAIN[0],
        replace(CHAIN[1], events=("{}", *CHAIN[1].events[1:])),
        *CHAIN[2:],
    ],
    "an event dropped": lambda: [
        CHAIN[0],
        replace(CHAIN[1], events=CHAIN[1].events[1:]),
        *CHAIN[2:],
    ],
    "events swapped": lambda: [
        CHAIN[0],
        replace(CHAIN[1], events=tuple(reversed(CHAIN[1].events))),
        *CHAIN[2:],
    ],
    "a time changed": lambda: [CHAIN[0], replace(CHAIN[1], time_ns=9), *CHAIN[2:]],
    "a block made anew": lambda: [
        CHAIN[0],
        Block.make(2, 2, CHAIN[0].hash, ("{}",)),
        *CHAIN[2:],
    ],
    "a block dropped": lambda: [CHAIN[0], *CHAIN[2:]],
    "the end dropped": lambda: CHAIN[:-1],
    "the beginning changed": lambda: [Block.make(1, 1, "f" * 64, ()), *CHAIN[1:]],
    "all made anew": lambda: chain(actor="eve"),
    "nothing left": list,
}


def test_a_whole_chain_has_no_problems() -> None:
    report = verify(CHAIN, [HEAD, (2, CHAIN[1].hash)])
    assert (report.blocks, report.events, report.head, report.problems) == (4, 12, HEAD[1], ())


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_done_to_a_chain_is_seen(name: str) -> None:
    assert verify(TAMPERED[name](), [HEAD]).problems != ()


def test_an_export_is_the_chain() -> None:
    lines = [line for block in CHAIN for line in block.lines()]
    assert list(blocks_of_lines(lines)) == CHAIN


@pytest.mark.parametrize("line", ["", "{}", "[]", "x", '{"block":1}', "\x00", "[" * 99_999])
def test_what_is_no_export_is_said_to_be_none(line: str) -> None:
    with pytest.raises(InvalidInputError):
        list(blocks_of_lines([line]))


@pytest.mark.parametrize("where", ["actor", "address", "request_id", "repository", "detail"])
def test_no_token_stands_in_an_event(where: str) -> None:
    token = make_token()
    event = AuditEvent(1, "write", paths=(f"/x/{token}",), **{where: f"a {token} b"})
    assert token[4:20] not in event.encode()


def test_text_that_is_no_text_is_written_down_all_the_same() -> None:
    event = AuditEvent(1, "refusal", paths=("/\udcff\n\x00" + "x" * 10_000,))
    assert len(event.encode()) < 1000
    assert "\n" not in event.encode()
