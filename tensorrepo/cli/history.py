"""History: `log`, its graph, `reflog`, and how a commit is shown in a line, whole, and as JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.options import (
    CommandCall,
    RepoCall,
    complete_branch,
    complete_ref_or_entry,
    sides,
    split_words,
)
from tensorrepo.query.drawing.commit_graph import ASCII, graph_lines
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.moments import moment_text, parse_moment
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.history.signatures import commit_signatory
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import Update
from tensorrepo.repo.transfer.origins import origin_of
from tensorrepo.workspace.session import SPACES, WorkspaceSession

if TYPE_CHECKING:
    from tensorrepo.query.compare.comparison import Comparison

RefNames = dict["Digest", list[str]]


def names_of(session: WorkspaceSession) -> RefNames:
    """Branches and tags, and HEAD, by the commit that they stand at."""
    names: RefNames = {}
    head = session.head
    for ref, at in sorted(session.repository.log.refresh().state.refs.items()):
        space, _, name = ref.partition("/")
        shown = {"heads": name, "remotes": name, "tags": f"tag: {name}"}.get(space, ref)
        if head is not None and space == "heads" and name == head.branch:
            shown = f"HEAD -> {name}"
        names.setdefault(at, []).append(shown)
    if head is not None and head.commit is not None:
        names.setdefault(head.commit, []).insert(0, "HEAD")
    return names


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
    if commit.beyond:
        lines.append(
            f"History ends here, before {', '.join(f'{one:.12}' for one in commit.beyond)}"
        )
    lines += [
        f"Author: {output.escape(commit.author)}",
        f"Date:   {moment_text(commit.time_ns)}",
    ]
    if (origin := origin_of(commit)) is not None:
        told = f"{origin.path} of commit {origin.commit:.12} in repository {origin.repository}"
        lines.append(f"From:   {output.escape(told)}")
    lines.append("")
    lines += [f"    {output.escape(line)}" for line in commit.message.splitlines()]
    return "\n".join([*lines, ""])


def commit_json(digest: Digest, commit: Commit, names: RefNames) -> dict[str, object]:
    """For programs."""
    return {
        "commit": digest,
        "parents": list(commit.parents or commit.beyond),
        "shallow": bool(commit.beyond),
        "author": commit.author,
        "time": datetime.fromtimestamp(commit.time_ns / 1e9, UTC).isoformat(),
        "message": commit.message,
        "refs": names.get(digest, []),
        "changed": list(commit.changed) if commit.changed is not None else None,
        "metadata": dict(commit.metadata),
    }


def changes_of(
    session: WorkspaceSession, commit: Commit, paths: tuple[str, ...] = ()
) -> Comparison:
    """What a commit changed in its first parent, of `paths` or of all.

    A checkpoint stands beside its parent and holds its own entries alone: it removed no others.
    """
    before = tree_of(session.repository.objects, commit.parents[0] if commit.parents else None)
    own = None if commit.changed is None else frozenset(commit.changed)
    return lazy.compare(session.repository, before, commit.tree, paths, removed=own)


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """Which commits are asked for: all that is told must hold.

    Attributes:
        author: matches somewhere in author and address.
        message: matches somewhere in the message.
        since: UTC in ns of the earliest.
        until: UTC in ns of the last.
    """

    author: re.Pattern[str] | None = None
    message: re.Pattern[str] | None = None
    since: int | None = None
    until: int | None = None

    def takes(self, commit: Commit) -> bool:
        return (
            (self.author is None or self.author.search(commit.author) is not None)
            and (self.message is None or self.message.search(commit.message) is not None)
            and (self.since is None or commit.time_ns >= self.since)
            and (self.until is None or commit.time_ns <= self.until)
        )


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
    author: Annotated[
        str | None, Option(metavar="REGEX", help="Only commits whose author matches.")
    ] = None,
    grep: Annotated[
        str | None, Option(metavar="REGEX", help="Only commits whose message matches.")
    ] = None,
    since: Annotated[
        str | None, Option(metavar="MOMENT", help="Only commits from then on: '3 days ago'.")
    ] = None,
    until: Annotated[
        str | None, Option(metavar="MOMENT", help="Only commits until then: 2026-11-01.")
    ] = None,
    patch: Annotated[bool, Option("-p", "--patch", help="With what each commit changed.")] = False,
    stat: Annotated[bool, Option("--stat", help="With a line for each entry changed.")] = False,
    signatures: Annotated[
        bool, Option("--show-signature", help="With who signed each commit.")
    ] = False,
    void: Annotated[
        bool, Option("--no-effect", help="Show entries of the log that had none, and why.")
    ] = False,
) -> None:
    """Show commits, the newest first.

    Examples:
        tensorrepo log --graph --all
        tensorrepo log v1..main
        tensorrepo log main -- datasets/photos
        tensorrepo log --author ada --since "2 weeks ago" --stat
        tensorrepo log -n 5 --json
    """
    session = call.session
    if void:
        _show_void(call)
        return
    if graph and (patch or stat):
        raise InvalidInputError("--graph draws a line for each commit: leave out -p and --stat")
    revisions, paths = split_words(call, words)
    now_ns = time.time_ns()
    wanted = CommitFilter(
        _pattern("--author", author),
        _pattern("--grep", grep),
        None if since is None else parse_moment(since, now_ns=now_ns),
        None if until is None else parse_moment(until, now_ns=now_ns, ends=True),
    )
    walked = _history(session, revisions, paths, wanted, everything=everything)
    names = names_of(session)
    history = islice(((digest, commit) for digest, commit, touched in walked if touched), limit)
    told = partial(changes_of, session, paths=paths) if patch or stat else None
    view = session.repository.log.refresh()
    allowed = session.repository.policy.signers(view.state) if signatures else None
    if call.as_json:
        output.json_lines(
            _document(digest, commit, names, told) | _signed_json(commit, allowed)
            for digest, commit in history
        )
    elif graph:
        _show_graph(walked, limit, names)
    else:
        for digest, commit in history:
            output.styled((headline if oneline else whole)(digest, commit, names))
            if allowed is not None:
                output.lines([f"    {commit_signatory(commit, allowed)}", ""])
            if told is not None:
                output.lines(told(commit).lines(stat=not patch))
                output.lines([] if oneline else [""])


def _signed_json(commit: Commit, allowed: Mapping[str, str] | None) -> dict[str, object]:
    """Who signed a commit, for programs; nothing where nobody asked."""
    if allowed is None:
        return {}
    found = commit_signatory(commit, allowed)
    return {"signature": found.state, "signer": found.name or None, "key": found.key or None}


def _pattern(option: str, text: str | None) -> re.Pattern[str] | None:
    """A regular expression for which upper and lower case are one."""
    try:
        return None if text is None else re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise InvalidInputError(
            f"{option} {text!r:.80} is no regular expression: {error}"
        ) from error


def _document(
    digest: Digest, commit: Commit, names: RefNames, told: Callable[[Commit], Comparison] | None
) -> dict[str, object]:
    changed = {} if told is None else {"diff": told(commit).to_json()}
    return commit_json(digest, commit, names) | changed


def _history(
    session: WorkspaceSession,
    revisions: list[str],
    paths: tuple[str, ...],
    wanted: CommitFilter,
    *,
    everything: bool,
) -> Iterator[tuple[Digest, Commit, bool]]:
    """Commits, and whether each is wanted and changed one of `paths`, or whatever without any."""
    repository = session.repository
    tips, hidden = _tips(session, revisions, everything=everything)
    # `photos` may mean `datasets/photos`: whichever of them a commit changed.
    names = [full for path in paths for full in (path, *(f"{space}/{path}" for space in SPACES))]
    for digest, commit in walk(repository.objects, tips, hidden=hidden):
        touched = (repository.touches(digest, commit, path.strip("/")) for path in names)
        yield digest, commit, wanted.takes(commit) and (not names or any(touched))


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


# What a record did to a ref, where its note is not all that there is to say.
_DEEDS = {"ref-create": "made", "ref-delete": "deleted", "ref-reset": "reset", "tag": "tagged"}
# What a transfer notes, and what it did to the ref by the kind of its entry: git's words.
_TRANSFER = re.compile(r"push|restore|(push|fetch|clone|pull) [A-Za-z0-9_-]+")
_TRANSFERRED = {
    "commit": "fast-forward", "ref-create": "new", "ref-delete": "deleted",
    "ref-reset": "forced-update", "tag": "new",
}  # fmt: skip


def reflog_command(
    call: RepoCall,
    ref: Annotated[
        str | None,
        Argument(help="A branch or tag, also one that is gone.", autocompletion=complete_branch),
    ] = None,
    limit: Annotated[int | None, Option("-n", "--limit", min=1, help="At most so many.")] = None,
) -> None:
    """Show where a branch was: each move with who made it, when and why, the newest first.

    `main@{2}` names where main stood before its last two moves, `main@{yesterday}` where it stood
    then; every command takes both. A branch that was deleted is found, too, and of one that was
    renamed what it did under its former name.

    Examples:
        tensorrepo reflog
        tensorrepo reflog cleaning -n 5
    """
    full = _moved_ref(call.session, ref)
    moves = list(islice(refs.places(call.session.repository, full), limit))
    if not moves:
        raise NotFoundError(f"{refs.describe_ref(full)} never was: the log has no move of it")
    name = full
    for space in (refs.BRANCHES, refs.TAGS, refs.REMOTES):
        name = name.removeprefix(space)
    call.show(
        [_move_document(f"{name}@{{{at}}}", move) for at, move in enumerate(moves)],
        {
            "place": lambda each: each["place"],
            "commit": lambda each: (each["commit"] or "none")[:12],
            "when": lambda each: each["time"][:19].replace("T", " "),
            "who": lambda each: each["actor"].partition(" <")[0],
            "why": lambda each: each["why"],
        },
    )
    if not call.as_json:
        head = call.session.head
        is_here = head is not None and full == f"{refs.BRANCHES}{head.branch}"
        output.note(_way_back(full, name, moves[0].update, is_here=is_here))


def _moved_ref(session: WorkspaceSession, name: str | None) -> str:
    """The full name of a ref, which may be gone; without a name the branch that one is on."""
    if name is None:
        head = session.head
        name = "main" if head is None else session.branch()
    known = session.repository.log.refresh().state.refs
    full = (refs.BRANCHES + name, refs.TAGS + name, refs.REMOTES + name, name)
    return next((each for each in full if each in known), full[0])


def _move_document(place: str, move: refs.Move) -> dict[str, Any]:
    entry, update = move.entry, move.update
    return {
        "place": place,
        "commit": update.new,
        "was": update.old,
        "time": datetime.fromtimestamp(entry.time_ns / 1e9, UTC).isoformat(),
        "actor": entry.actor,
        "why": _why(move),
        "record": move.generation,
    }


def _why(move: refs.Move) -> str:
    kind, note = move.entry.kind, move.entry.note
    if move.renamed is None and _TRANSFER.fullmatch(note):
        return f"{note}: {_TRANSFERRED.get(kind, kind)}"
    deed = "renamed" if move.renamed is not None else _DEEDS.get(kind, kind)
    return f"{deed}: {note}" if note else deed


def _way_back(full: str, name: str, last: Update, *, is_here: bool) -> str:
    if full.startswith(refs.TAGS) and last.new is not None:
        return "A tag never moves."
    if last.new is None:
        verb = "tag" if full.startswith(refs.TAGS) else "branch"
        return f"It was deleted: `tensorrepo {verb} {name} {last.old:.12}` brings it back."
    verb = "reset" if is_here else "branch NEW"
    what = "moves it back" if is_here else "makes a branch there"
    return f"`tensorrepo show {name}@{{n}}` looks, `tensorrepo {verb} {name}@{{n}}` {what}."
