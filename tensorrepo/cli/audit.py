"""The audit log of a server: `audit export` and `audit verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from tensorrepo.api.audit.anchors import anchors_of
from tensorrepo.api.audit.events import Block, ChainReport, blocks_of_lines, verify
from tensorrepo.api.service import Service, open_service
from tensorrepo.api.settings import make_settings
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import EXIT_CODES
from tensorrepo.cli.login import ServerOption
from tensorrepo.cli.options import CommandCall
from tensorrepo.server_calls import server_of


def audit_export_command(
    call: CommandCall,
    after: Annotated[
        int, Option("--after", metavar="BLOCK", help="What came behind this block.", min=0)
    ] = 0,
    server: ServerOption = None,
) -> None:
    """Print a server's audit log, as JSON lines.

    For who runs the server. Each line has its place in the chain, which `audit verify` follows.

    Examples:
        tensorrepo audit export > audit.jsonl
        tensorrepo audit export --after 81920 >> audit.jsonl
    """
    with server_of(call.machine, server) as asked:
        output.lines(asked.lines("/audit", after=after))


def audit_verify_command(
    call: CommandCall,
    file: Annotated[
        str | None, Argument(metavar="FILE", help="An export; else the service's own database.")
    ] = None,
    data: Annotated[
        str | None, Option("--data", metavar="DIR", help="The service's folder.")
    ] = None,
) -> None:
    """Prove that nothing was dropped from an audit log, or changed.

    Without FILE it works where the service does, by the same settings, and compares the chain with
    what the logs of its repositories say that it was. Ends with 5 where something is wrong.

    Examples:
        tensorrepo audit verify
        tensorrepo audit verify audit.jsonl
    """
    found = _of_file(call.path(file)) if file is not None else _of_service(call, data)
    lines = [f"{found.events} events in {found.blocks} blocks; the last has hash {found.head}"]
    call.answer(
        {
            "blocks": found.blocks,
            "events": found.events,
            "first": found.first,
            "last": found.last,
            "head": found.head,
            "problems": list(found.problems),
        },
        *lines,
        *(f"  {problem}" for problem in found.problems),
    )
    if found.problems:
        raise Exit(EXIT_CODES["corrupt"])


def _of_file(path: Path) -> ChainReport:
    with path.open(encoding="utf-8") as lines:
        return verify(blocks_of_lines(line for line in lines if line.strip()))


def _of_service(call: CommandCall, data: str | None) -> ChainReport:
    settings = make_settings(**({} if data is None else {"data": call.path(data)}))
    with closing(open_service(settings, call.machine.environment)) as service:
        return verify(_blocks(service), list(_anchors(service)))


def _blocks(service: Service) -> Iterable[Block]:
    return service.audit.blocks()


def _anchors(service: Service) -> Iterator[tuple[int, str]]:
    for listed in service.directory.listed():
        yield from anchors_of(service.directory.open(listed.name).core)
