"""Commands on repository and machine: `init`, `config`, `doctor`, `resolve`, `version`."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall, LogOption, RepoCall, complete_entry
from tensorrepo.connect import (
    CONFIG_KEYS,
    WORKSPACE_KEYS,
    is_url,
    parse_prefixes,
    read_config,
    write_config,
)
from tensorrepo.formats.common.arguments import byte_size, counted, without_password
from tensorrepo.policy import check_setting
from tensorrepo.remotes import whole_url
from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.trial import ERROR, CheckResult, Trial
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.repo.changes.lost_found import find_lost
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.commits import commit_lines
from tensorrepo.repo.log import append
from tensorrepo.repo.log.log_check import RECORD
from tensorrepo.repo.log.repair import void_slot
from tensorrepo.repo.transfer.repair import (
    AcceptedLog,
    RebuiltCache,
    Repaired,
    RepairedObject,
    RepairedRecord,
)
from tensorrepo.verbs.fsck import MAX_FAULTS, SHOWN_PARTS, Fault, fsck
from tensorrepo.verbs.repair import repair as mend_repository
from tensorrepo.verbs.repair import restore_identity
from tensorrepo.verbs.transfer import Here
from tensorrepo.workspace.doctor import examine, repair, store_trial
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
        tensorrepo init https://example.org/team/photos
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
MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


def doctor_command(
    call: RepoCall,
    store: Annotated[
        str | None,
        Argument(metavar="STORE", help="Try this store instead: a folder, or a URL as for init."),
    ] = None,
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

    With STORE, tries whether that keeps all that a repository needs of a store: creates that one
    writer wins, reads, ranges, listings, deletions. It need hold no repository. Keys are made below
    a random prefix, and removed again.

    Examples:
        tensorrepo doctor
        tensorrepo doctor s3://bucket/team
        tensorrepo doctor --repo s3://bucket/team
        tensorrepo doctor --repair
    """
    if store is not None:
        if repair_caches or void is not None or call.repo is not None:
            raise InvalidInputError(
                f"{store}: a STORE is tried as it is. Leave out --repo, --void and --repair, or it."
            )
        _try_store(call, store)
        return
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
        lines.append(f"{MARKS[finding.level]} {finding.what}: {finding.found}")
        lines += [f"        {finding.advice}"] if finding.advice else []
    call.answer([asdict(finding) for finding in findings], *lines)
    if any(finding.level == "error" for finding in findings):
        raise Exit(CORRUPT)


def _try_store(call: CommandCall, store: str) -> None:
    """Run all checks of a store; what each found, and what it means."""
    trial = store_trial(call.machine, store)
    output.note(f"keys are made below {trial.place}, and removed again")
    results: list[CheckResult] = []
    try:
        with (
            closing(trial.run()) as running,
            output.row_progress("trying the store", "checks") as advance,
        ):
            for result in running:
                results.append(result)
                advance(len(results), len(trial.checks), result.what)
    except KeyboardInterrupt:
        stays = trial.removal()
        told = f"nothing is left below {trial.place}" if stays is None else stays.found
        raise KeyboardInterrupt(told) from None
    if (stays := trial.removal()) is not None:
        results.append(stays)
    lines = list(chain.from_iterable(map(_check_lines, results)))
    faults = sum(result.level == ERROR for result in results)
    call.answer([asdict(result) for result in results], *lines, _verdict(trial, faults))
    if faults:
        raise Exit(CORRUPT)


def _check_lines(result: CheckResult) -> Iterator[str]:
    expected = f"expected {result.expected}; found " if result.expected else ""
    yield f"{MARKS[result.level]} {result.what}: {expected}{result.found}"
    if result.consequence:
        yield f"        It means: {result.consequence}."


def _verdict(trial: Trial, faults: int) -> str:
    if faults:
        return f"{counted(faults, 'fault')}: let no repository lie in {trial.backend.url}"
    if trial.backend.guarantee is Guarantee.ATOMIC:
        return "no fault found: any number of writers may share a repository here"
    return "no fault found: one process at a time may write to a repository here"


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
        bool, Option("--repair", help="First put right what copies and the log can put right.")
    ] = False,
    source: Annotated[
        list[str] | None,
        Option("--from", metavar="URL", help="Ask this copy before the remotes; may be repeated."),
    ] = None,
    lost_found: Annotated[
        bool, Option("--lost-found", help="Name commits that no ref leads to: lost-found/DIGITS.")
    ] = False,
) -> None:
    """Check the log, and the data of all that anything leads to, in every commit.

    Metadata is read and verified. Of chunks and packs it is seen that they are there, and of their
    size; --deep reads and decodes them. What is damaged is named by column and rows, or by tensor.
    --repair fetches it by its digest from copies: those given with --from, then the remotes that
    have a name here; records of the log from those that are mirrors of this repository. Damaged
    bytes are kept below quarantine/.

    Examples:
        tensorrepo fsck
        tensorrepo fsck datasets/photos
        tensorrepo fsck --deep --repair
        tensorrepo fsck --repair --from s3://bucket/mirror
        tensorrepo fsck --lost-found
    """
    sources = [whole_url(call.machine, each) for each in source or ()]
    if sources and not mend:
        raise InvalidInputError("--from says where --repair looks: give both")
    if lost_found:
        _show_lost(call)
        return
    totals = ObjectTotals()
    if mend:
        _mend(call, sources, deep=deep)
    session = call.session
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
    lines = [*chain.from_iterable(map(_fault_lines, faults)), *_unknown_lines(totals)]
    call.answer(value, *lines, _totals_line(totals, faults, repaired=mend))
    if faults:
        raise Exit(CORRUPT)


def _mend(call: CommandCall, sources: list[str], *, deep: bool) -> None:
    """Repair, and say what is repaired as it is: lines, of JSON where that was asked for."""
    try:
        session = call.session
    except CorruptError:
        url = _place_of(call)
        restored = restore_identity(call.machine, url, sources, output.warning)
        if restored is None:
            raise
        _tell(
            call, {"repaired": "repo.json", "from": restored}, f"repo.json is back, from {restored}"
        )
        session = call.session
    config = session.workspace.config_file if session.workspace is not None else None
    here = Here(call.machine, session.repository, config)
    for one in mend_repository(here, sources=sources, deep=deep, warn=output.warning):
        _tell(call, *_repaired(one))


def _place_of(call: CommandCall) -> str:
    """URL of a repository that cannot be opened."""
    workspace = workspace_around(call.machine) if call.repo is None else None
    if workspace is None:
        return call.repo or ""
    url = workspace.state().url
    return url if is_url(url) else str(workspace.root / url)


def _tell(call: CommandCall, record: dict[str, Any], text: str) -> None:
    if call.as_json:
        output.json_lines([record])
    else:
        output.line(text)


def _repaired(one: Repaired) -> tuple[dict[str, Any], str]:
    """A thing that was put right: for programs, and for people."""
    if isinstance(one, RepairedRecord):
        text = f"log record {one.generation} is back, from {one.url}"
        return {"repaired": "log record", "generation": one.generation, "from": one.url}, text
    if isinstance(one, RepairedObject):
        text = f"{one.kind} {one.digest:.12} is back, from {one.url}"
        return {"repaired": one.kind, "digest": one.digest, "from": one.url}, text
    if isinstance(one, AcceptedLog):
        text = "the log, which was restored from an older backup, may be written to again"
        return {"repaired": "restored log", "from": one.url}, text
    if isinstance(one, RebuiltCache):
        done = "made anew" if one.rebuilt else "put away: nothing needs it"
        record = {"repaired": one.kind, "key": one.key, "rebuilt": one.rebuilt}
        return record, f"{one.kind} {one.key} is {done}"
    place = one.place or None
    kept = f"its bytes are kept at {place}" if place else "nothing of it could be read"
    record = {"quarantined": one.key, "place": place, "bytes": one.bytes}
    return record, f"{one.key} was damaged: {kept}"


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


def _fault_lines(fault: Fault) -> Iterator[str]:
    where = fault.path or ("commit" if fault.commit else fault.kind)
    commit = f" (commit {fault.commit:.12})" if fault.commit else ""
    yield f"ERROR   {where}{commit}: {fault.problem}"
    yield from _some(fault.parts)
    if fault.also:
        yield f"        needed as well by {', '.join(fault.also[:SHOWN_PARTS])}"
        if len(fault.also) > SHOWN_PARTS:
            yield f"        and {len(fault.also) - SHOWN_PARTS:,} more with --json"


def _some(parts: Sequence[str]) -> Iterator[str]:
    yield from (f"        {part}" for part in parts[:SHOWN_PARTS])
    if len(parts) > SHOWN_PARTS:
        yield f"        and {len(parts) - SHOWN_PARTS:,} more with --json"


def _unknown_lines(totals: ObjectTotals) -> Iterator[str]:
    """Files that are nobody's: no damage, and nothing deletes them."""
    if totals.unknown_count:
        yield f"{counted(totals.unknown_count, 'file')} of no meaning here, which stay:"
        yield from _some(totals.unknown)


def _totals_line(totals: ObjectTotals, faults: Sequence[Fault], *, repaired: bool) -> str:
    size = output.bytes_text(totals.bytes)
    looked = f"{counted(totals.objects, 'object')} of {size} in {counted(totals.commits, 'commit')}"
    if not faults:
        return f"ok: {looked}"
    more = "at least " if len(faults) >= MAX_FAULTS else ""
    found = f"{more}{counted(len(faults), 'fault')} in {looked}."
    rest = "" if any(fault.kind == RECORD for fault in faults) else " All else can be read."
    if repaired:
        return (
            f"{found} No copy that was asked has what is missing: name another one by --from URL, "
            f"or go back to a commit without it.{rest}"
        )
    return (
        f"{found} `tensorrepo fsck --repair` fetches what is damaged from the remotes, --from URL "
        f"from another copy.{rest}"
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
