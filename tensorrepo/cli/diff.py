"""`diff`, `show`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.commits import commit_json, names_of, whole
from tensorrepo.cli.common import JsonOption, RepoOption, session_of, sides, split_words
from tensorrepo.cli.complete import complete_place, complete_ref_or_entry
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.compare import Comparison, DatasetChange, compare
from tensorrepo.repo.attempt import tree_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.revisions import split_path
from tensorrepo.rowlines import row_documents, row_lines
from tensorrepo.workspace.describe import describe_entry
from tensorrepo.workspace.outside import files_in_place, files_text
from tensorrepo.workspace.working_diff import compare_working

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.workspace.session import Session


_T = TypeVar("_T")
SHOWN_ROWS = 20  # of each dataset, unless told


def show_command(
    context: Context,
    what: Annotated[
        str | None, Argument(metavar="REF[:PATH]", autocompletion=complete_place)
    ] = None,
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
    if what is not None and split_path(what)[1]:
        _show_entry(session, what, as_json=as_json)
        return
    try:
        revision = session.resolve(what)
    except NotFoundError as error:
        raise _named_an_entry(session, what, error) from None
    commit = revision.commit
    objects = session.repository.objects
    before = tree_of(objects, commit.parents[0] if commit.parents else None)
    compared = compare(session.repository, before, commit.tree)
    names = names_of(session)
    if as_json:
        document = commit_json(revision.digest, commit, names)
        output.json_value(document | {"diff": compared.to_json()})
        return
    output.styled(whole(revision.digest, commit, names))
    output.lines(compared.lines())


def _named_an_entry(session: Session, what: str | None, error: NotFoundError) -> NotFoundError:
    """The error of a ref that is not there, with what to type where it names an entry of HEAD."""
    try:
        _, path, _ = session.find(what or "")
    except NotFoundError:
        return error
    return NotFoundError(f"{what!r} is no commit but an entry: `tensorrepo show HEAD:{path}`")


def diff_command(
    context: Context,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="A B|A..B -- PATH",
            help="Two commits (B: HEAD); only these entries.",
            autocompletion=complete_ref_or_entry,
        ),
    ] = None,
    stat: Annotated[bool, Option("--stat", help="A line for each entry.")] = False,
    rows: Annotated[
        bool, Option("--rows", help="Rows of datasets that changed, cell by cell.")
    ] = False,
    limit: Annotated[
        int | None, Option("--limit", min=1, help="Rows of each dataset; else 20, with --json all.")
    ] = None,
    key: Annotated[
        str | None,
        Option("--key", metavar="COL[,COL]", help="Match rows by these columns, not by id."),
    ] = None,
    columns: Annotated[
        str | None, Option("--columns", metavar="COL[,COL]", help="Compare and show only these.")
    ] = None,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with 1 when they differ.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two commits; without any, what is staged and changed on disk.

    Examples:
        tensorrepo diff
        tensorrepo diff v1 main
        tensorrepo diff v1..main --stat
        tensorrepo diff v1 main --rows --limit 5 -- datasets/photos
        tensorrepo diff v1 main --key id
        tensorrepo diff HEAD~1 HEAD -- datasets/photos
    """
    session = session_of(context, repo)
    revisions, paths = split_words(context, session, words)
    compared = _compared(session, revisions, paths)
    if rows or key is not None or columns is not None:
        wanted = _Wanted(_split(columns), _split(key), limit)
        if as_json:
            output.json_lines(_row_documents(compared, wanted))
        else:
            output.lines(_row_lines(compared, wanted))
    elif as_json:
        output.json_value(compared.to_json())
    else:
        output.lines(compared.lines(stat=stat))
    if exit_code and compared.differs:
        raise Exit(NOTHING_TO_DO)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked of the rows."""

    columns: list[str] | None
    key: list[str] | None
    limit: int | None


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",")]


def _row_lines(compared: Comparison, wanted: _Wanted) -> Iterator[str]:
    limit = SHOWN_ROWS if wanted.limit is None else wanted.limit
    lacking = _lacking(compared, wanted)
    for change in compared.changes:
        yield f"{change.mark} {change.path}{change.summary}"
        if change.path in lacking:
            yield f"    not compared: {lacking[change.path]}"
        elif isinstance(change, DatasetChange):
            lines = row_lines(change, columns=wanted.columns, key=wanted.key, limit=limit)
            yield from (f"    {line}" for line in _naming(change, lines))
    yield from compared.working


def _row_documents(compared: Comparison, wanted: _Wanted) -> Iterator[dict[str, Any]]:
    lacking = _lacking(compared, wanted)
    for path, reason in lacking.items():
        output.note(f"note: {path} is not compared: {reason}")
    for change in compared.datasets.values():
        if change.path not in lacking:
            documents = row_documents(
                change, columns=wanted.columns, key=wanted.key, limit=wanted.limit
            )
            yield from _naming(change, documents)


def _lacking(compared: Comparison, wanted: _Wanted) -> dict[str, str]:
    """The datasets without some of the columns asked for, and what they lack.

    Raises:
        NotFoundError: all of them.
    """
    every = {
        path: change.lacks(wanted.columns, wanted.key) for path, change in compared.datasets.items()
    }
    lacking = {path: reason for path, reason in every.items() if reason is not None}
    if lacking and len(lacking) == len(every):
        raise NotFoundError("; ".join(f"{path}: {reason}" for path, reason in lacking.items()))
    return lacking


def _naming(change: DatasetChange, items: Iterator[_T]) -> Iterator[_T]:
    """`items`, whose errors name the dataset: there may be several."""
    try:
        yield from items
    except InvalidInputError as error:
        raise InvalidInputError(f"{change.path}: {error}") from error


def _compared(session: Session, revisions: list[str], paths: tuple[str, ...]) -> Comparison:
    if not revisions and session.workspace is not None:
        return compare_working(session, paths)
    if len(revisions) not in {1, 2}:
        raise InvalidInputError(
            f"a diff has two sides, A B or A..B, got {' '.join(revisions) or 'none'}. Paths come "
            "after --"
        )
    old, new = sides(revisions) or (revisions[0], revisions[1] if revisions[1:] else None)
    before, after = session.resolve(old), session.resolve(new)
    return compare(
        session.repository,
        before.commit.tree,
        after.commit.tree,
        paths,
        outside=session.outside,
    )


def _show_entry(session: Session, what: str, *, as_json: bool) -> None:
    revision, path, entry = session.find(what)
    described = describe_entry(session.repository.objects, path, entry)
    files = files_in_place(session.repository.objects, [entry])
    if as_json:
        document = {"commit": revision.digest, **described.to_json()}
        output.json_value({**document, "files_in_place": [asdict(file) for file in files]})
        return
    output.line(f"{described.path} ({described.kind}) in commit {revision.digest:.12}")
    output.line(f"  {described.shape}, {output.bytes_text(described.bytes)}, digest {entry.digest}")
    for detail in described.details:
        output.line(f"  {detail}")
    for text in files_text(files):
        output.line(f"  {text}")
