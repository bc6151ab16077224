"""Repository handle of the SDK: verbs between repositories, loaded when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tensorrepo import lazy
from tensorrepo.formats.common.arguments import listed, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorrepo.context import Context
    from tensorrepo.repo.changes.merge_branches import MergeOutcome
    from tensorrepo.repo.transfer.bundle import BundleReport
    from tensorrepo.repo.transfer.exchange import TransferReport
    from tensorrepo.repo.transfer.pace import TransferTotals
    from tensorrepo.repo.transfer.promotion import Promotion
    from tensorrepo.verbs.import_history import ImportedHistory


class RepositoryExchange:
    """What a repository exchanges with others. See `Repository`."""

    context: Context

    def remotes(self) -> dict[str, str]:
        """URLs of other repositories that have a name here, in this machine's settings."""
        return lazy.here_of(self.context).remotes.urls()

    def add_remote(self, name: str, url: str | Path) -> None:
        """Name another repository; its URL holds no secrets, which the environment has.

        Raises:
            ConflictError: the name is taken.
        """
        lazy.here_of(self.context).remotes.add(text("name", name), str(url))

    def import_history(
        self,
        path: str | Path,
        *,
        tool: str | None = None,
        name: str | None = None,
        prefix: str = "",
        missing: Literal["refuse", "skip"] = "refuse",
        progress: Callable[[int, int, int], None] = lambda _done, _total, _bytes: None,
    ) -> ImportedHistory:
        """Import a repository of another tool with its commits, branches and tags.

        One that was cut off goes on, and one that is repeated imports what is new.

        Args:
            path: a git repository, with git-lfs or a DVC project or without, or a folder that
                Hugging Face's libraries downloaded to.
            tool: "git", "dvc" or "huggingface"; None: what the folder is.
            name: what a model is called that all of a commit is; None: as the repository.
            prefix: what branches and tags begin with here, such as ``"upstream/"``.
            missing: "refuse": nothing is imported where a content is missing; "skip": it is left
                out, and told.
            progress: receives commits done, commits in all, and bytes read.

        Raises:
            NotFoundError: no such folder, or contents are missing.
            ConflictError: a branch here has commits of its own. Nothing changed.
            CorruptError: a content is not what names it. What was imported before it stays, and a
                later import goes on behind that.
        """
        made: ImportedHistory = lazy.import_history(
            self.context,
            Path(text("path", str(path))),
            tool=tool,
            name=name,
            prefix=prefix,
            missing=missing,
            progress=progress,
        )
        return made

    def fetch(
        self,
        remote: str | None = None,
        refs: Iterable[str] = (),
        *,
        tags: bool = True,
        prune: bool = False,
        depth: int | None = None,
        unshallow: bool = False,
        limit_rate: int | str | None = None,
        progress: Callable[[TransferTotals], None] = lambda _: None,
    ) -> TransferReport:
        """Bring commits of another repository here; its branches are then ``remote/branch``.

        Args:
            remote: name, URL, folder or bundle; None: origin. A mirror follows its origin.
            refs: branches and tags; none: all.
            tags: all new tags, too.
            prune: forget branches that are gone there.
            depth: so many commits back of each branch, also behind where history ends here.
            unshallow: all of the history that ends here.
            limit_rate: bytes a second at most, such as ``"10MB"``.
            progress: receives the counters of the transfer, on any thread.

        Raises:
            CorruptError: something is damaged there. Nothing of that was stored.
        """
        return lazy.fetch(
            self.context,
            remote,
            listed("refs", refs),
            tags=tags,
            prune=prune,
            depth=depth,
            unshallow=unshallow,
            limit_rate=limit_rate,
            progress=progress,
        )

    def fetch_data(
        self,
        *,
        limit_rate: int | str | None = None,
        progress: Callable[[TransferTotals], None] = lambda _: None,
    ) -> TransferTotals:
        """Bring all data that a lazy clone left at its origin. Arguments as of `fetch`."""
        return lazy.fetch_data(self.context, limit_rate, progress)

    def push(
        self,
        remote: str | None = None,
        refs: Iterable[str] = ("main",),
        *,
        force: bool = False,
        lease: bool = False,
        tags: bool = False,
        limit_rate: int | str | None = None,
        progress: Callable[[TransferTotals], None] = lambda _: None,
    ) -> TransferReport:
        """Bring commits to another repository and move its branches: all of them, or none.

        Args:
            remote: name, URL or folder; None: origin.
            refs: branches and tags, ``source:target``, ``:target`` to delete.
            force: branches may move other than forward.
            lease: they may, where they are at what was fetched last.
            tags: all tags, too.
            limit_rate: bytes a second at most, such as ``"10MB"``.
            progress: receives the counters of the transfer, on any thread.

        Raises:
            ConflictError: a branch would not move forward. Nothing was pushed.
        """
        return lazy.push(
            self.context,
            remote,
            listed("refs", refs),
            force=force,
            lease=lease,
            tags=tags,
            limit_rate=limit_rate,
            progress=progress,
        )

    def pull(
        self,
        branch: str = "main",
        remote: str | None = None,
        *,
        limit_rate: int | str | None = None,
        progress: Callable[[TransferTotals], None] = lambda _: None,
    ) -> MergeOutcome:
        """Fetch, and merge the branch of the same name. Arguments as of `fetch`."""
        return lazy.pull(self.context, remote, branch, limit_rate, progress)

    def promote(
        self,
        path: str,
        to: str | Path,
        *,
        ref: str = "main",
        named: str | None = None,
        branch: str = "main",
        message: str | None = None,
        limit_rate: int | str | None = None,
    ) -> Promotion:
        """Bring one entry to another repository without its history, and commit it there.

        Args:
            path: such as ``models/net``.
            to: the receiver: name of a remote, URL or folder.
            ref: the commit here.
            named: its name there; None: the same.
            branch: branch there.
            message: message of the commit there.
            limit_rate: bytes a second at most.
        """
        return lazy.promote(
            self.context,
            path,
            to,
            ref=ref,
            named=named,
            branch=branch,
            message=message,
            limit_rate=limit_rate,
        )

    def bundle(
        self,
        to: str | Path,
        refs: Iterable[str] = ("main",),
        *,
        everything: bool = False,
        overwrite: bool = False,
    ) -> BundleReport:
        """Write commits and all their data to one file, which `tensorrepo.clone` reads.

        Args:
            to: path of the file.
            refs: branches and tags; ``"v1..main"`` leaves out what v1 has.
            everything: all branches, tags, runs and registered versions.
            overwrite: whether a file that is there is replaced.
        """
        return lazy.bundle(
            self.context, to, listed("refs", refs), everything=everything, overwrite=overwrite
        )
