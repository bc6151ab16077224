"""Page that compares two versions: rows of a dataset, layers of a model, lines of a file."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from functools import partial
from itertools import groupby, islice
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.differences import compare_commits, compare_rows
from tensorrepo.api.content.documents import file_bytes, shown_file
from tensorrepo.api.content.history import HistoryFilter, list_history
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.cells import ShownCell, shown_cell
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.models import compare_models
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.pages.repository import ref_names, revision_at
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import bounded_text

router: Final = deferred_router(include_in_schema=False)
Version = Annotated[str, Query(max_length=1024)]
COMPARED: Final = ("datasets/", "models/", "files/")
_ROWS: Final = 20  # of a page
_COLUMNS: Final = 40
_LINES: Final = 1000
_VERSIONS: Final = 30  # commits that are offered
_REFS: Final = 100  # of each kind
_COMMITS: Final = "Commits that changed it"
_SIDES: Final = {"added": "added", "deleted": "removed"}  # of rows that have one side alone
_WAITING: Final = {
    "datasets/": "Comparing rows…",
    "models/": "Measuring how far the tensors moved…",
    "files/": "Comparing lines…",
}


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row that differs: its columns with a cell before and a cell after; None: not there."""

    change: str
    id: str
    old_row: int | None
    new_row: int | None
    cells: list[tuple[str, ShownCell | None, ShownCell | None]]


@dataclass(frozen=True, slots=True)
class VersionChoices:
    """Versions that may be compared: names of refs and digests of commits, with words for them."""

    groups: Mapping[str, list[tuple[str, str]]]

    def before(self, new: str) -> str:
        """What the newest version that is offered was before its last change; "" without `new`."""
        return self.commits[1][0] if new and len(self.commits) > 1 else ""

    @property
    def commits(self) -> list[tuple[str, str]]:
        return self.groups[_COMMITS]

    @property
    def known(self) -> set[str]:
        return {key for some in self.groups.values() for key, _ in some}


@router.get("/{repository:repository}/-/compare")
def compare(
    page: RepositoryPageOf,
    path: Annotated[str, Query(max_length=4096)],
    old: Version = "",
    new: Version = "",
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """What became of `path` between two commits; without them, which there are to choose from."""
    kind = next((one for one in COMPARED if path.startswith(one)), None)
    if kind is None:
        raise InvalidInputError(
            f"datasets, models and files are compared on a page, not {path!r:.120}"
        )
    if not page.is_fragment:
        choices = version_choices(page, path, new)
        return page.render(
            "compare.html",
            path=path,
            old=old or choices.before(new),
            new=new,
            choices=choices,
            waiting=_WAITING[kind],
        )
    if kind == "models/":
        return compare_models(page, path, old, new)
    before, after = page.service.at(page.access, old), page.service.at(page.access, new)
    if kind == "files/":
        return _compare_files(page, path, before, after)
    return _compare_rows(page, path, before, after, start)


def version_choices(page: RepositoryPage, path: str, new: str) -> VersionChoices:
    """Refs, and the newest commits that changed `path`."""
    _, revision = revision_at(page, new)
    content = page.service.at(page.access, revision.digest)
    commits = list_history(content, HistoryFilter(path=path), limit=_VERSIONS).commits
    refs = {
        words: [(one, one) for one in names[:_REFS]]
        for words, names in ref_names(page.access).items()
    }
    told = [
        (one.digest, f"{one.digest[:10]} {bounded_text(one.message.partition(chr(10))[0], 48)}")
        for one in commits
    ]
    return VersionChoices({**refs, _COMMITS: told})


def _compare_rows(
    page: RepositoryPage, path: str, before: CommitContent, after: CommitContent, start: int
) -> Response:
    values: dict[str, Any] = {
        "path": path, "old": before.commit, "new": after.commit, "start": start, "sides": _SIDES,
    }  # fmt: skip
    told = compare_commits(before, after, path, limit=1)
    if not told.changes:
        return page.render("_compare_rows.html", told=None, found=None, groups=[], **values)
    found = compare_rows(before, after, path, start=start, limit=_ROWS)
    rows = [_pair(page, before, after, path, one) for one in found.rows]
    groups = [(change, list(some)) for change, some in groupby(rows, lambda one: one.change)]
    return page.render(
        "_compare_rows.html", told=told.changes[0], found=found, groups=groups, **values
    )


def _compare_files(
    page: RepositoryPage, path: str, before: CommitContent, after: CommitContent
) -> Response:
    sides = [shown_file(one, path) for one in (before, after)]
    is_text = all(one.text is not None or one.html is not None for one in sides)
    lines: list[tuple[str, str]] | None = None
    if is_text:
        old, new = (file_bytes(one, path).decode().splitlines() for one in (before, after))
        lines = [
            (_line_kind(line), line)
            for line in islice(unified_diff(old, new, lineterm="", n=3), 2, _LINES + 3)
        ]
    return page.render(
        "_compare_files.html",
        path=path,
        old=before.commit,
        new=after.commit,
        before=sides[0],
        after=sides[1],
        pictures=all(one.is_picture for one in sides),
        lines=None if lines is None else lines[:_LINES],
        more=lines is not None and len(lines) > _LINES,
    )


def _line_kind(line: str) -> str:
    return {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "same")


def _pair(
    page: RepositoryPage,
    before: CommitContent,
    after: CommitContent,
    path: str,
    row: Mapping[str, Any],
) -> RowPair:
    sides = []
    for content, values, number in (
        (before, row["old"], row["old_row"]),
        (after, row["new"], row["new_row"]),
    ):
        columns = _columns(content, path) if number is not None else {}
        sides.append(
            {
                name: _cell(page, content, path, columns[name], value, number)
                for name, value in (values or {}).items()
                if name in columns
            }
        )
    names = list(dict.fromkeys([*sides[0], *sides[1]]))[:_COLUMNS]
    return RowPair(
        row["change"],
        row["row_id"],
        row["old_row"],
        row["new_row"],
        [(name, sides[0].get(name), sides[1].get(name)) for name in names],
    )


def _columns(content: CommitContent, path: str) -> dict[str, Column]:
    return {column.name: column for column in content.dataset(path).schema.visible.columns}


def _cell(
    page: RepositoryPage, content: CommitContent, path: str, column: Column, value: Any, row: int
) -> ShownCell:
    link = partial(page.here, "cell", path, column=column.name, row=str(row), ref=content.commit)
    return shown_cell(column, value, link)
