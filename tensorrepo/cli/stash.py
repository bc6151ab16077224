"""Stashes of a workspace: the command `stash`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall
from tensorrepo.repo.changes.moments import moment_text
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import PathChange, lookup
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.stash import bring_back, drop, find_stash, push
from tensorrepo.workspace.state import Stash

_ACTIONS = ("push", "list", "show", "pop", "apply", "drop")


def stash_command(
    call: CommandCall,
    action: Annotated[
        str, Argument(metavar="push|list|show|pop|apply|drop", help="What to do; else push.")
    ] = "push",
    name: Annotated[
        str | None, Argument(metavar="STASH", help="Which: stash@{1} or 1; else the newest.")
    ] = None,
    message: Annotated[
        str | None, Option("-m", "--message", help="Of push: what it is, for the list.")
    ] = None,
) -> None:
    """Put staged entries and changed working files aside, and bring them back.

    `push` leaves the workspace as HEAD has it, `pop` brings the newest stash back, `apply` does so
    and keeps it, `drop` forgets it. Stashes belong to this workspace. Where a file or an entry is
    in the way nothing changes, and the stash is kept. Nothing to stash: exit code 1.

    Examples:
        tensorrepo stash
        tensorrepo stash push -m "half of the labels"
        tensorrepo stash list
        tensorrepo stash show 1
        tensorrepo stash pop
    """
    if action not in _ACTIONS:
        raise InvalidInputError(f"no action {action!r}: there are {', '.join(_ACTIONS)}")
    if action != "push" and message is not None:
        raise InvalidInputError("-m goes with push")
    if action in ("push", "list") and name is not None:
        raise InvalidInputError(f"{action} takes no stash, got {name!r:.80}: name it with -m")
    session = call.session
    if action == "list":
        _list(call)
    elif action == "show":
        _show(call, name)
    else:
        with session.here.locked():
            if action == "push":
                _push(call, message or "")
            else:
                _bring_back_or_drop(call, action, name)


def _push(call: CommandCall, message: str) -> None:
    with output.working("stashing"):
        made = push(call.session, message)
    if made is None:
        output.note("nothing to stash: nothing is staged, and no file that checkout wrote changed")
        raise Exit(NOTHING_TO_DO)
    call.answer(
        _document(0, made),
        f"Stashed {_content(made)} as stash@{{0}}. `tensorrepo stash pop` brings it back.",
    )


def _bring_back_or_drop(call: CommandCall, action: str, name: str | None) -> None:
    number, stash = find_stash(call.session, name)
    if action == "drop":
        drop(call.session, stash)
        line = f"Dropped stash@{{{number}}} ({_content(stash)})."
    else:
        bring_back(call.session, stash, keep=action == "apply")
        kept = " It is kept." if action == "apply" else ""
        line = f"Brought back {_content(stash)} of stash@{{{number}}}.{kept}"
    call.answer(_document(number, stash), line)


def _list(call: CommandCall) -> None:
    stashes = list(enumerate(call.session.here.stashes()))
    if call.as_json:
        output.json_value([_document(number, stash) for number, stash in stashes])
        return
    for number, stash in stashes:
        told = f": {stash.message}" if stash.message else ""
        when = moment_text(stash.time_ns)
        output.line(f"stash@{{{number}}}  {when}  on {_place(stash)}, {_content(stash)}{told}")


def _show(call: CommandCall, name: str | None) -> None:
    session = call.session
    number, stash = find_stash(session, name)
    changes = list(_changes(session, stash))
    if call.as_json:
        document = _document(number, stash) | {"changes": [each.to_json() for each in changes]}
        output.json_value(document)
        return
    for change in changes:
        output.line(f"{change.mark} {change.path}{change.summary}")
        output.lines(f"    {detail}" for detail in lazy.shortened(change.details))
    for path in stash.files:
        output.line(f"modified {path} (on disk)")


def _changes(session: WorkspaceSession, stash: Stash) -> Iterator[Any]:
    """What is staged in a stash, against the commit that it was staged on."""
    objects = session.repository.objects
    tree = tree_of(objects, stash.staging.base)
    for path, staged in stash.staging.entries.items():
        change = PathChange(path, lookup(objects, tree, path), staged.entry)
        yield lazy.compare_entry(session.repository, change, session.outside)


def _place(stash: Stash) -> str:
    return stash.head.branch or f"{stash.head.commit:.12}"


def _content(stash: Stash) -> str:
    staged, files = len(stash.staging.entries), len(stash.files)
    entries = f"{staged} staged {'entry' if staged == 1 else 'entries'}"
    parts = [entries] if staged else []
    parts += [f"{output.counted(files, 'path')} changed on disk"] if files else []
    return " and ".join(parts)


def _document(number: int, stash: Stash) -> dict[str, Any]:
    return {
        "stash": f"stash@{{{number}}}",
        "message": stash.message,
        "branch": stash.head.branch,
        "time": datetime.fromtimestamp(stash.time_ns / 1e9, UTC).isoformat(),
        "staged": list(stash.staging.entries),
        "files": list(stash.files),
    }
