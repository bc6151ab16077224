"""History: `log`, its graph, and how a commit is shown in a line, whole, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.commit_graph import ASCII, graph_lines
from tensorrepo.cli.options import CommandCall, RepoCall, complete_ref_or_entry, sides, split_words
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.session import SPACES, WorkspaceSession

RefNames = dict["Digest", list[str]]


def names_of(session: WorkspaceSession) -> RefNames:
    """Branches and tags, and HEAD, by the commit that they stand at."""
    names: RefNames = {}
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


def headline(digest: Digest, commit: Commit, names: RefNames) -> str:
    """One line, with markup."""
    refs = f" [green]({output.escape(', '.join(names[digest]))})[/green]" if digest in names else ""
    subject = output.escape(commit.message.partition("\n")[0])
    return f"[yellow]{digest:.12}[/yellow]{refs} {subject}"


def whole(digest: Digest, commit: Commit, names: RefNames) -> str:
    """Everything but what it changed, with markup."""
    refs = f" [green]({output.escape(', '.join(names[digest]))})[/green]" if digest in names else ""
    lines = [f"[yellow]commit {digest}[/yellow]{refs}"]
    if len(commit.parents) > 1:
        lines.append(f"Merge:  {' '.join(f'{parent:.12}' for parent in commit.parents)}")
    lines += [f"Author: {output.escape(commit.author)}", f"Date:   {_time(commit)}", ""]
    lines += [f"    {output.escape(line)}" for line in commit.message.splitlines()]
    return "\n".join([*lines, ""])


def commit_json(digest: Digest, commit: Commit, names: RefNames) -> dict[str, object]:
    """For programs."""
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


def log_command(
    call: RepoCall,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="REF|A..B -- PATH",
            help="From where; only commits that changed these.",
            autocompletion=complete_ref_or_entry,
        ),
    ] = None,
    graph: Annotated[bool, Option("--graph", help="Draw how commits join.")] = False,
    oneline: Annotated[bool, Option("--oneline", help="A line for each commit.")] = False,
    limit: Annotated[int | None, Option("-n", "--limit", min=0, help="At most so many.")] = None,
    everything: Annotated[bool, Option("--all", help="From every branch and tag.")] = False,
    void: Annotated[
        bool, Option("--no-effect", help="Show entries of the log that had none, and why.")
    ] = False,
) -> None:
    """Show commits, the newest first.

    Examples:
        tensorrepo log --graph --all
        tensorrepo log v1..main
        tensorrepo log main -- datasets/photos
        tensorrepo log -n 5 --json
    """
    session = call.session
    if void:
        _show_void(call)
        return
    revisions, paths = split_words(call, words)
    walked = _history(session, revisions, paths, everything=everything)
    names = names_of(session)
    history = islice(((digest, commit) for digest, commit, touched in walked if touched), limit)
    if call.as_json:
        output.json_lines(commit_json(digest, commit, names) for digest, commit in history)
    elif graph:
        _show_graph(walked, limit, names)
    else:
        for digest, commit in history:
            shown = headline if oneline else whole
            output.styled(shown(digest, commit, names))


def _history(
    session: WorkspaceSession, revisions: list[str], paths: tuple[str, ...], *, everything: bool
) -> Iterator[tuple[Digest, Commit, bool]]:
    """Commits, and whether each changed one of `paths`, or whatever it changed without any."""
    repository = session.repository
    tips, hidden = _tips(session, revisions, everything=everything)
    # `photos` may mean `datasets/photos`: whichever of them a commit changed.
    wanted = [full for path in paths for full in (path, *(f"{space}/{path}" for space in SPACES))]
    for digest, commit in walk(repository.objects, tips, hidden=hidden):
        touched = (repository.touches(digest, commit, path.strip("/")) for path in wanted)
        yield digest, commit, not wanted or any(touched)


def _tips(
    session: WorkspaceSession, revisions: list[str], *, everything: bool
) -> tuple[list[Digest], list[Digest]]:
    """Where to begin, and the commits whose history is left out."""
    if everything:
        if revisions:
            raise InvalidInputError("--all is every branch and tag: give no revision beside it")
        return sorted(set(session.repository.log.refresh().state.refs.values())), []
    if (both := sides(revisions)) is not None:
        return [session.resolve(both[1]).digest], [session.resolve(both[0]).digest]
    if len(revisions) > 1:
        raise InvalidInputError(
            f"one revision or A..B, got {' '.join(revisions)}. Paths come after --"
        )
    return [session.resolve(revisions[0] if revisions else None).digest], []


def _show_graph(
    history: Iterator[tuple[Digest, Commit, bool]], limit: int | None, names: RefNames
) -> None:
    drawn: dict[str, Commit] = {}

    def remembered() -> Iterator[tuple[str, tuple[str, ...], bool]]:
        for digest, commit, is_shown in history:
            if is_shown:
                drawn[digest] = commit
            yield digest, commit.parents, is_shown

    shown = 0
    for digest, line in graph_lines(remembered()):
        drawing = output.encodable(line, ASCII)
        if digest is None:
            output.line(drawing)
            continue
        if shown == limit:
            return
        shown += 1
        commit = drawn.pop(digest)
        output.styled(f"{drawing} {headline(Digest(digest), commit, names)}")


def _show_void(call: CommandCall) -> None:
    log = call.session.repository.log
    void = [
        {"record": record.gen, "txn": each.txn, "kind": each.kind, "reason": each.reason}
        for record, verdicts in log.judged(1, log.refresh().generation + 1)
        for each in verdicts
        if not each.applied
    ]
    texts = ("record {record}: {kind} {txn:.12} {reason}".format_map(each) for each in void)
    call.answer(void, *texts)
