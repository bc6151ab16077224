"""`log`, `diff`, `show`."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.cli.graph import graph_lines
from tensorrepo.compare import Comparison, compare, compare_working
from tensorrepo.repo.attempt import tree_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history import touches, walk
from tensorrepo.repo.revisions import split_path
from tensorrepo.workspace.describe import describe_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session


def log_command(
    context: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF|A..B]")] = None,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PATH]...", help="Only commits that changed them."),
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw how commits join.")] = False,
    oneline: Annotated[bool, typer.Option("--oneline", help="A line for each commit.")] = False,
    limit: Annotated[int | None, typer.Option("-n", "--limit", help="At most so many.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="From every branch and tag.")] = False,
    void: Annotated[
        bool, typer.Option("--void", help="Show entries of the log that had no effect, and why.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show commits, the newest first.

    Examples:
        tensorrepo log --graph --all
        tensorrepo log v1..main
        tensorrepo log main -- datasets/photos
        tensorrepo log -n 5 --json
    """
    session = session_of(context, repo)
    if void:
        _show_void(session, as_json=as_json)
        return
    history = islice(_history(session, ref, tuple(paths or ()), everything=everything), limit)
    names = _names(session)
    if as_json:
        output.json_lines(_commit_json(digest, commit, names) for digest, commit in history)
    elif graph:
        _show_graph(history, names)
    else:
        for digest, commit in history:
            output.styled(
                _headline(digest, commit, names) if oneline else _full(digest, commit, names)
            )


def show_command(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="[REF[:PATH]]")] = "HEAD",
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one commit and what it changed, or one entry of it.

    Examples:
        tensorrepo show
        tensorrepo show v1
        tensorrepo show main:datasets/photos
    """
    session = session_of(context, repo)
    if split_path(what)[1]:
        _show_entry(session, what, as_json=as_json)
        return
    revision = session.resolve(what)
    commit = revision.commit
    objects = session.repository.objects
    before = tree_of(objects, commit.parents[0] if commit.parents else None)
    compared = compare(objects, before, commit.tree)
    names = _names(session)
    if as_json:
        output.json_value(
            _commit_json(revision.digest, commit, names) | {"diff": compared.to_json()}
        )
        return
    output.styled(_full(revision.digest, commit, names))
    _show_comparison(compared, stat=False)


def diff_command(
    context: typer.Context,
    revisions: Annotated[
        list[str] | None, typer.Argument(metavar="[A [B] | A..B] [-- PATH]...")
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="A line for each entry.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="How many rows came and went.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two commits; without any, what is staged and changed on disk.

    Examples:
        tensorrepo diff
        tensorrepo diff v1 main
        tensorrepo diff v1..main --stat
        tensorrepo diff HEAD~1 HEAD -- datasets/photos
    """
    session = session_of(context, repo)
    old, new, paths = _sides(session, list(revisions or ()))
    objects = session.repository.objects
    if old is None:
        compared = compare_working(session, paths)
    else:
        after = session.resolve(new or "HEAD").commit.tree
        compared = compare(objects, session.resolve(old).commit.tree, after, paths)
    if as_json:
        output.json_value(compared.to_json())
    else:
        _show_comparison(compared, stat=stat and not rows)
    if exit_code and compared.differs:
        raise typer.Exit(NOTHING_TO_DO)


def _sides(session: Session, words: list[str]) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The two revisions and the paths of a diff. A word is a path when it contains a slash."""
    refs: list[str] = []
    paths: list[str] = []
    for word in words:
        (paths if "/" in word and ".." not in word and not _is_ref(session, word) else refs).append(
            word
        )
    if len(refs) == 1 and ".." in refs[0]:
        old, _, new = refs[0].partition("..")
        refs = [old or "HEAD", new or "HEAD"]
    if len(refs) > 2:
        raise InvalidInputError("a diff has two sides: give A B or A..B, and paths with a slash")
    refs += [""] * (2 - len(refs))
    return refs[0] or None, refs[1] or None, tuple(paths)


def _is_ref(session: Session, word: str) -> bool:
    state = session.repository.log.refresh().state
    return any(f"{space}/{word}" in state.refs for space in ("heads", "tags"))


def _history(
    session: Session, ref: str | None, paths: tuple[str, ...], *, everything: bool
) -> Iterator[tuple[Digest, Commit]]:
    objects = session.repository.objects
    hidden: list[Digest] = []
    if everything:
        tips = sorted(set(session.repository.log.refresh().state.refs.values()))
    else:
        name = ref or ("HEAD" if session.workspace else "main")
        old, dots, new = name.partition("..")
        tips = [session.resolve((new or "HEAD") if dots else name).digest]
        hidden = [session.resolve(old or "HEAD").digest] if dots else []
    for digest, commit in walk(objects, tips, hidden=hidden):
        if not paths or any(touches(objects, commit, path) for path in paths):
            yield digest, commit


def _names(session: Session) -> dict[Digest, list[str]]:
    names: dict[Digest, list[str]] = {}
    head = session.head
    for ref, at in sorted(session.repository.log.refresh().state.refs.items()):
        space, _, name = ref.partition("/")
        shown = {"heads": name, "tags": f"tag: {name}"}.get(space, ref)
        if head is not None and space == "heads" and name == head.branch:
            shown = f"HEAD -> {name}"
        names.setdefault(at, []).append(shown)
    if head is not None and head.commit is not None:
        names.setdefault(head.commit, []).insert(0, "HEAD")
    return names


def _time(commit: Commit) -> str:
    return datetime.fromtimestamp(commit.time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _headline(digest: Digest, commit: Commit, names: dict[Digest, list[str]]) -> str:
    refs = f" [green]({output.escape(', '.join(names[digest]))})[/green]" if digest in names else ""
    subject = output.escape(commit.message.partition("\n")[0])
    return f"[yellow]{digest:.12}[/yellow]{refs} {subject}"


def _full(digest: Digest, commit: Commit, names: dict[Digest, list[str]]) -> str:
    refs = f" [green]({output.escape(', '.join(names[digest]))})[/green]" if digest in names else ""
    lines = [f"[yellow]commit {digest}[/yellow]{refs}"]
    if len(commit.parents) > 1:
        lines.append(f"Merge:  {' '.join(f'{parent:.12}' for parent in commit.parents)}")
    lines += [f"Author: {output.escape(commit.author)}", f"Date:   {_time(commit)}", ""]
    lines += [f"    {output.escape(line)}" for line in commit.message.splitlines()]
    return "\n".join([*lines, ""])


def _show_graph(history: Iterator[tuple[Digest, Commit]], names: dict[Digest, list[str]]) -> None:
    known: dict[str, Commit] = {}

    def remembered() -> Iterator[tuple[str, tuple[str, ...]]]:
        for digest, commit in history:
            known[digest] = commit
            yield digest, commit.parents

    for digest, drawing in graph_lines(remembered()):
        if digest is None:
            output.line(drawing)
        else:
            commit = known.pop(digest)
            output.styled(f"{drawing} {_headline(digest, commit, names)}")  # type: ignore[arg-type]


def _commit_json(
    digest: Digest, commit: Commit, names: dict[Digest, list[str]]
) -> dict[str, object]:
    return {
        "commit": digest,
        "parents": list(commit.parents),
        "author": commit.author,
        "time": datetime.fromtimestamp(commit.time_ns / 1e9, UTC).isoformat(),
        "message": commit.message,
        "refs": names.get(digest, []),
        "changed": list(commit.changed) if commit.changed is not None else None,
        "metadata": dict(commit.metadata),
    }


def _show_comparison(compared: Comparison, *, stat: bool) -> None:
    for change in compared.changes:
        output.line(f"{change.mark} {change.path}{change.summary}")
        if not stat:
            for detail in change.details:
                output.line(f"    {detail}")
    for line in compared.working:
        output.line(line)


def _show_entry(session: Session, what: str, *, as_json: bool) -> None:
    revision, path, entry = session.find(what)
    described = describe_entry(session.repository.objects, path, entry)
    if as_json:
        output.json_value({"commit": revision.digest, **described.to_json()})
        return
    output.line(f"{described.path} ({described.kind}) in commit {revision.digest:.12}")
    output.line(f"  {described.shape}, {output.bytes_text(described.bytes)}, digest {entry.digest}")
    for detail in described.details:
        output.line(f"  {detail}")


def _show_void(session: Session, *, as_json: bool) -> None:
    log = session.repository.log
    found = []
    for record, verdicts in log.judged(1, log.refresh().generation + 1):
        found += [
            {"record": record.gen, "txn": one.txn, "kind": one.kind, "reason": one.reason}
            for one in verdicts
            if not one.applied
        ]
    if as_json:
        output.json_value(found)
        return
    for one in found:
        output.line(f"record {one['record']}: {one['kind']} {one['txn']:.12} {one['reason']}")
