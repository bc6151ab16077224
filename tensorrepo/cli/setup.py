"""Commands on repository and machine: `init`, `config`, `doctor`, `resolve`, `version`."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall, LogOption, RepoCall, complete_entry
from tensorrepo.connect import (
    CONFIG_KEYS,
    WORKSPACE_KEYS,
    parse_prefixes,
    read_config,
    write_config,
)
from tensorrepo.formats.common.arguments import byte_size, counted, without_password
from tensorrepo.policy import check_setting
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.repo.changes.lost_found import find_lost
from tensorrepo.repo.errors import CommitOutcomeUnknown, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import commit_lines
from tensorrepo.repo.log import append
from tensorrepo.repo.log.repair import void_slot
from tensorrepo.verbs.fsck import RECORD, SHOWN_PARTS, Fault, fsck
from tensorrepo.verbs.repair import Repairs
from tensorrepo.verbs.repair import repair as mend_repository
from tensorrepo.verbs.transfer import Here
from tensorrepo.workspace.doctor import examine, repair
from tensorrepo.workspace.session import start_workspace, workspace_around
from tensorrepo.workspace.state import Workspace


def init_command(
    call: CommandCall,
    url: Annotated[
        str | None, Argument(metavar="URL", help="Where the repository is to lie.")
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Make a workspace inside of another one, or anew.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Make a repository at URL and a workspace here, on branch main.

    Without URL the repository lies in .tensorrepo/store. Where there is a repository at URL
    already, only the workspace is made: that is how a second person joins.

    With --log the log lies in a SQL database, for many commits a second; your settings remember
    which. Others who use the repository say so by TENSORREPO_LOG or the setting log.url.

    Examples:
        tensorrepo init
        tensorrepo init s3://bucket/team --log postgresql://user@host/database
        tensorrepo init s3://bucket/team
        tensorrepo init /mnt/data/repository
    """
    made = start_workspace(call.machine, url, force=force, log=log)
    url, root = made.repository.url, str(made.workspace.root)
    call.answer(
        {"url": url, "workspace": root, "created": made.created, "branch": "main"},
        f"{'Made a' if made.created else 'Joined the'} repository at {url}",
        f"Workspace {root} is on branch main.",
    )


def config_command(
    call: CommandCall,
    key: Annotated[str | None, Argument(help="Such as user.name.")] = None,
    value: Annotated[str | None, Argument(help="What to set it to.")] = None,
    everywhere: Annotated[
        bool, Option("--global", help="Of your user, in all workspaces, not of this one.")
    ] = False,
    unset: Annotated[bool, Option("--unset", help="Forget the setting.")] = False,
) -> None:
    """Show or set your name, address and other settings.

    Without a value the setting is printed, without a key all of them. Name and address are those of
    this workspace, or with --global yours in all of them; the other settings are always yours.

    Examples:
        tensorrepo config user.name "Ada Lovelace"
        tensorrepo config --global user.email ada@example.org
        tensorrepo config cache.limit 50GB
    """
    here = call.machine
    if key is not None and key not in CONFIG_KEYS and not check_setting(key):
        keys = "; ".join(f"{name} ({what})" for name, what in CONFIG_KEYS.items())
        raise InvalidInputError(f"no setting {key!r}. There are: {keys}")
    workspace = None if everywhere else workspace_around(here)
    if value is None and not unset:
        _show_settings(call, key, here.config_file, workspace)
        return
    if key is None:
        raise InvalidInputError("--unset needs the KEY to forget")
    file = here.config_file
    if key in WORKSPACE_KEYS and not everywhere:
        if workspace is None:
            raise NotFoundError(
                f"there is no workspace here for {key}: run `tensorrepo init` first, or set it in "
                f"all workspaces of yours with `tensorrepo config --global {key}`"
            )
        file = workspace.config_file
    settings = read_config(file)
    if value is None:
        write_config(file, {name: held for name, held in settings.items() if name != key})
        return
    if key == "cache.limit":
        byte_size(key, value)  # refuses what is no size
    if key == "outside.allow":
        parse_prefixes(value)  # refuses what is no place
    if key in ("user.signingkey", "signers.file"):
        value = str(here.path(str(Path(value).expanduser())))
    if key == "commit.sign":
        value = str(_is_true(key, value)).lower()
    write_config(file, {**settings, key: value})
    if without_password(value) != value:
        output.note(
            f"the password lies in {file} now, for you alone to read. PGPASSWORD or ~/.pgpass keep "
            "it out of there."
        )


def _is_true(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidInputError(f"{key} is true or false, not {value!r:.40}")
    return value.lower() == "true"


def _show_settings(
    call: CommandCall, key: str | None, file: Path, workspace: Workspace | None
) -> None:
    """One setting, or all: the workspace's before the user's."""
    settings = read_config(file)
    if workspace is not None:
        own = read_config(workspace.config_file)
        settings |= {name: held for name, held in own.items() if name in WORKSPACE_KEYS}
    settings = {name: without_password(held) for name, held in settings.items()}
    if key is None:
        call.answer(settings, *(f"{name} = {held}" for name, held in sorted(settings.items())))
    elif key in settings:
        call.answer({"key": key, "value": settings[key]}, settings[key])
    else:
        raise Exit(1)


PACKAGES = (
    "blake3", "fsspec", "msgspec", "numpy", "obstore", "opencv-python-headless", "pillow",
    "pyarrow", "simplejpeg", "torch", "typer", "xxhash", "zstandard",
)  # fmt: skip
CORRUPT = 5


def doctor_command(
    call: RepoCall,
    void: Annotated[
        int | None,
        Option(
            "--void", metavar="GEN", help="Mark slot GEN of the log, which is no record, as empty."
        ),
    ] = None,
    repair_caches: Annotated[
        bool, Option("--repair", help="Write the log's hint and newest checkpoint anew.")
    ] = False,
) -> None:
    """Check the repository, this machine and the workspace: what works, what does not, what to do.

    Reads the log and every object of the newest commits, and verifies them; probes what the store
    can promise; looks for commits whose outcome is unknown.

    Examples:
        tensorrepo doctor
        tensorrepo doctor --repo s3://bucket/team
        tensorrepo doctor --repair
    """
    session = call.session
    if repair_caches and void is not None:
        raise InvalidInputError("give --void or --repair: a slot is marked first, then repaired")
    if repair_caches:
        _repair(call)
        return
    if void is not None:
        void_slot(session.repository.log, void, actor=session.author(), time_ns=time.time_ns())
        call.answer({"void": void}, f"slot {void} of the log counts as empty")
        return
    findings = list(examine(session))
    lines = []
    for finding in findings:
        mark = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}[finding.level]
        lines.append(f"{mark} {finding.what}: {finding.found}")
        lines += [f"        {finding.advice}"] if finding.advice else []
    call.answer([asdict(finding) for finding in findings], *lines)
    if any(finding.level == "error" for finding in findings):
        raise Exit(CORRUPT)


def fsck_command(
    call: RepoCall,
    name: Annotated[
        str | None,
        Argument(metavar="[REF:]NAME", help="Only this entry.", autocompletion=complete_entry),
    ] = None,
    deep: Annotated[
        bool, Option("--deep", help="Read and verify every byte; else sizes are compared.")
    ] = False,
    mend: Annotated[
        bool, Option("--repair", help="First fetch what is damaged from the remotes.")
    ] = False,
    lost_found: Annotated[
        bool, Option("--lost-found", help="Name commits that no ref leads to: lost-found/DIGITS.")
    ] = False,
) -> None:
    """Check the data of all that branches and tags reach, in every commit.

    Metadata is read and verified. Of chunks and packs it is seen that they are there, and of their
    size; --deep reads them. What is damaged is named by column and rows, or by tensor. --repair
    fetches it by its digest from the remotes that have a name here; records of the log from those
    that are mirrors of this repository.

    Examples:
        tensorrepo fsck
        tensorrepo fsck datasets/photos
        tensorrepo fsck --deep --repair
        tensorrepo fsck --lost-found
    """
    session, totals = call.session, ObjectTotals()
    if lost_found:
        _show_lost(call)
        return
    repairs = _mended(call, deep=deep) if mend else None
    path, tips = "", None
    if name is not None:
        revision, path, _ = session.find(name)
        tips = [revision.digest]
    with output.progress("checking") as advance:
        faults = list(
            fsck(
                session.repository,
                totals,
                path=path,
                tips=tips,
                deep=deep,
                outside=session.outside,
                progress=lambda done: advance(done.bytes, None if path else done.stored_bytes),
            )
        )
    value = {**asdict(totals), "deep": deep, "faults": [asdict(fault) for fault in faults]}
    if repairs is not None:
        value |= {"repaired": asdict(repairs)}
        output.lines(() if call.as_json else _repair_lines(repairs))
    call.answer(
        value, *chain.from_iterable(map(_fault_lines, faults)), _totals_line(totals, faults)
    )
    if faults:
        raise Exit(CORRUPT)


def _mended(call: CommandCall, *, deep: bool) -> Repairs:
    session = call.session
    config = session.workspace.config_file if session.workspace is not None else None
    here = Here(call.machine, session.repository, config)
    return mend_repository(here, deep=deep, warn=output.warning)


def _show_lost(call: CommandCall) -> None:
    actor = call.session.author()
    with output.row_progress("looking for commits", "objects") as advance:
        found = find_lost(call.session.repository, actor=actor, progress=advance)
    if call.as_json:
        output.json_lines(
            {"commit": one.digest, "ref": one.ref or None, "message": one.commit.message}
            for one in found
        )
        return
    for one in found:
        (told, *_) = commit_lines(one.digest, one.commit)
        output.line(f"{one.ref or 'something of it is gone:'} {told}")
    if not found:
        output.note("every commit that is there is reached by a ref")


def _repair_lines(repairs: Repairs) -> Iterator[str]:
    yield from (f"log record {one.generation} is back, from {one.url}" for one in repairs.records)
    yield from (f"{one.kind} {one.digest:.12} is back, from {one.url}" for one in repairs.objects)
    if repairs.log_accepted:
        yield "the log, which was restored from an older backup, may be written to again"


def _fault_lines(fault: Fault) -> Iterator[str]:
    where = fault.path or "commit"
    commit = "" if fault.kind == RECORD else f" (commit {fault.commit:.12})"
    yield f"ERROR   {where}{commit}: {fault.problem}"
    yield from (f"        {part}" for part in fault.parts[:SHOWN_PARTS])
    if len(fault.parts) > SHOWN_PARTS:
        yield f"        and {len(fault.parts) - SHOWN_PARTS:,} more with --json"


def _totals_line(totals: ObjectTotals, faults: Sequence[Fault]) -> str:
    size = output.bytes_text(totals.bytes)
    looked = f"{counted(totals.objects, 'object')} of {size} in {counted(totals.commits, 'commit')}"
    if not faults:
        return f"ok: {looked}"
    return (
        f"{counted(len(faults), 'object')} of {looked} are damaged or missing. Restore them from a "
        "copy of the repository, or go back to a commit without them."
    )


def _repair(call: CommandCall) -> None:
    hint, checkpoint = repair(call.session)
    lines = [f"The hint names record {hint}." if hint else "The log is empty: nothing to repair."]
    lines += [f"Checkpoint {checkpoint} is as the records say."] if checkpoint else []
    call.answer({"hint": hint, "checkpoint": checkpoint}, *lines)


def resolve_command(
    call: RepoCall,
    txn: Annotated[str | None, Argument(metavar="TXN", help="Only this transaction.")] = None,
    settle: Annotated[
        bool, Option("--settle", help="Fill an empty slot, so that the answer is a definite one.")
    ] = False,
) -> None:
    """Find out what became of a commit whose outcome was unknown.

    A commit ends so when the store did not answer. It may be in the log, or may land later;
    --settle makes sure of one of the two.

    Examples:
        tensorrepo resolve
        tensorrepo resolve --settle
        tensorrepo resolve --repo s3://bucket/team
    """
    log = call.session.repository.log
    unresolved = [
        one
        for one in (log.pending.unresolved() if log.pending else ())
        if txn is None or one.txn.startswith(txn)
    ]
    if txn is not None and not unresolved:
        raise NotFoundError(f"no transaction {txn!r} is unresolved here")
    answers = []
    for one in unresolved:
        answer = append.resolve(log, one.txn, one.generation, settle=settle)
        answers.append({"txn": one.txn, "generation": one.generation, "outcome": answer})
    texts = ["record {generation} ({txn:.12}): {outcome}".format_map(each) for each in answers]
    call.answer(answers, *(texts or ["nothing is unresolved"]))
    unknown = [each for each in answers if each["outcome"] == "unknown"]
    if unknown:
        raise CommitOutcomeUnknown(
            f"{counted(len(unknown), 'outcome')} still unknown; --settle makes them definite",
            txn=str(unknown[0]["txn"]),
            generation=int(str(unknown[0]["generation"])),
        )


def version_command(call: CommandCall) -> None:
    """Show versions of tensorrepo and what it stands on.

    Examples:
        tensorrepo version
        tensorrepo version --json
    """
    versions = {
        "tensorrepo": VERSION,
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: _version_of(name) for name in PACKAGES},
    }
    texts = [f"  {name} {text or 'not installed'}" for name, text in list(versions.items())[1:]]
    call.answer(versions, f"tensorrepo {VERSION}", *texts)


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
