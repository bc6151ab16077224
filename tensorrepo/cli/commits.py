"""How is a commit shown: in a line, whole, as JSON?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tensorrepo.cli import output

if TYPE_CHECKING:
    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.workspace.session import Session

RefNames = dict["Digest", list[str]]


def names_of(session: Session) -> RefNames:
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
