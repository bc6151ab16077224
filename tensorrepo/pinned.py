"""Repository at one commit, to be read: its entries by name, and SQL over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from tensorrepo import hints, lazy
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import RecordTable, Shown, counted

if TYPE_CHECKING:
    from tensorrepo.catalog.lineage import Lineage
    from tensorrepo.context import Context
    from tensorrepo.datasets.dataset import Dataset, View
    from tensorrepo.models.model import Model
    from tensorrepo.query.sql.duck import Params
    from tensorrepo.query.sql.results import Result
    from tensorrepo.query.untrusted.sandbox import QueryLimits
    from tensorrepo.repo.history.commits import Commit
    from tensorrepo.repo.history.trees import Entry
    from tensorrepo.repo.ids import Digest

HandleT = TypeVar("HandleT")


class EntryHandles(Shown, Mapping[str, HandleT], Generic[HandleT]):
    """Entries of one kind in one commit, by name; each is opened when it is asked for.

    ``list(repo.datasets())`` gives names, ``repo.datasets()["photos"]`` a handle.
    """

    def __init__(
        self,
        context: Context,
        ref: str,
        space: str,
        kind: Kind,
        opened: Callable[[Context, str, str], HandleT],
    ) -> None:
        """Made by `Repository.datasets` and its like."""
        self._context, self._space, self._opened = context, space, opened
        self._commit, self._names = "", list[str]()
        if ref == "main" and not _has_commits(context):
            return
        revision = context.resolve(ref)
        self._commit = revision.digest
        for path, entry in context.core.entries(revision.commit.tree, f"{space}/"):
            if entry.kind is kind:
                self._names.append(path.removeprefix(f"{space}/"))

    def __getitem__(self, name: str) -> HandleT:
        if name not in self._names:
            at = f" in commit {self._commit:.12}" if self._commit else ""
            there = there_are(self._names, f"There are no {self._space}.")
            hint = did_you_mean(str(name), self._names, there)
            raise NotFoundError(f"no {self._space}/{name}{at}.{hint}")
        return self._opened(self._context, name, self._commit)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        some = ", ".join(self._names[:8]) + (", ..." if len(self) > 8 else "")
        return f"<{self._counted()}: {some}>" if some else f"<{self._counted()}>"

    def to_table(self) -> RecordTable:
        """Their names, a row for each."""
        return RecordTable.of(self._names, {self._space.removesuffix("s"): str}, self._counted())

    def _counted(self) -> str:
        return counted(len(self), self._space.removesuffix("s"))


def _has_commits(context: Context) -> bool:
    return any(ref.startswith(BRANCHES) for ref in context.core.log.refresh().state.refs)


def handles(context: Context, ref: str, space: str) -> EntryHandles[Any]:
    """The datasets, models or views of a commit."""
    kind, opened = {
        "datasets": (Kind.DATASET, lazy.dataset_at),
        "models": (Kind.MODEL, lazy.model_at),
        "views": (Kind.VIEW, lazy.view_at),
    }[space]
    return EntryHandles(context, ref, space, kind, opened)


class PinnedRepository:
    """A repository as it was at one commit. See `Repository.at`.

    `digest` names the commit, `commit` tells who made it, when and why.
    """

    def __init__(self, context: Context, ref: str) -> None:
        """Made by `Repository.at`."""
        self.context, self.ref = context, ref
        revision = context.resolve(ref)
        self.digest: Digest = revision.digest
        self.commit: Commit = revision.commit

    def datasets(self) -> EntryHandles[Dataset]:
        """Its datasets by name."""
        return handles(self.context, self.digest, "datasets")

    def models(self) -> EntryHandles[Model]:
        """Its models by name."""
        return handles(self.context, self.digest, "models")

    def views(self) -> EntryHandles[View]:
        """Its views by name."""
        return handles(self.context, self.digest, "views")

    def dataset(self, name: str) -> Dataset:
        """A dataset of this commit. Raises NotFoundError."""
        return lazy.dataset_at(self.context, name, self.digest)

    def model(self, name: str) -> Model:
        """A model of this commit. Raises NotFoundError."""
        return lazy.model_at(self.context, name, self.digest)

    def view(self, name: str) -> View:
        """A view of this commit. Raises NotFoundError."""
        return lazy.view_at(self.context, name, self.digest)

    def file(self, name: str) -> bytes:
        """Content of a file of this commit. Raises NotFoundError."""
        _, _, entry = self.context.entry("files", name, self.digest, Kind.BLOB)
        return bytes(self.context.core.objects.get(entry.digest).payload)

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        """Paths and what lies at them."""
        return dict(self.context.core.entries(self.commit.tree, prefix))

    def sql(
        self,
        query: str,
        *,
        params: Params = None,
        memory: int | str = "1GiB",
        untrusted: QueryLimits | None = None,
    ) -> Result:
        """Rows of a query whose tables are those of this commit; see `Repository.sql`."""
        return lazy.sql(
            self.context, query, ref=self.digest, params=params, memory=memory, untrusted=untrusted
        )

    def lineage(self, path: str, *, all_versions: bool = False) -> Lineage:
        """What something in this commit came from, and what came from it."""
        return lazy.Lineage.of(self.context, path, self.digest, all_versions=all_versions)

    def __getattr__(self, name: str) -> NoReturn:
        raise hints.no_attribute(self, name, hints.PINNED)

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedRepository, (self.context, self.digest)

    def __repr__(self) -> str:
        subject = self.commit.message.partition("\n")[0]
        return f"<repository {self.context.url} at {self.ref:.40}, {self.digest:.12}: {subject}>"
