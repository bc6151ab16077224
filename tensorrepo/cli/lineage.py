"""`lineage`: what something came from, and what came from it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.cli.handle import handle_of
from tensorrepo.repo.revisions import split_path

if TYPE_CHECKING:
    from tensorrepo.lineage import Kinship, Lineage
    from tensorrepo.repository import Repository
    from tensorrepo.workspace.session import Session


def lineage_command(
    context: Context,
    path: Annotated[
        str, Argument(metavar="[REF:]PATH", help="Such as models/net, runs/exp1, or a URL.")
    ],
    up: Annotated[bool, Option("--up", help="What it came from (this is the default).")] = False,
    down: Annotated[bool, Option("--down", help="What came from it.")] = False,
    depth: Annotated[int | None, Option(min=1, help="So many edges away at most.")] = None,
    relation: Annotated[
        list[str] | None,
        Option("--relation", metavar="WORD", help="Only over these edges; repeatable."),
    ] = None,
    all_versions: Annotated[
        bool, Option("--all-versions", help="Of all that was ever at PATH.")
    ] = False,
    dot: Annotated[bool, Option("--dot", help="For Graphviz.")] = False,
    deleted: Annotated[
        bool, Option("--deleted", help="Models that saw rows which the dataset has no more.")
    ] = False,
    data_since: Annotated[
        str | None,
        Option(
            "--data-since", metavar="[REF:]MODEL", help="What its data differ in from this one's."
        ),
    ] = None,
    reproducible: Annotated[
        bool, Option("--reproducible", help="Whether it can be made again; exits with 1 if not.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model, a dataset or a run came from, or what was made of it.

    Edges are noted by runs, imports, merges and the like. `--relation` takes their words:
    trained-on, fine-tuned-from, merged-from, derived-from, imported-from, made-by and others.

    Examples:
        tensorrepo lineage models/net
        tensorrepo lineage v1:datasets/photos --down --relation trained-on
        tensorrepo lineage models/net --up --down --dot > net.dot
        tensorrepo lineage datasets/photos --deleted
        tensorrepo lineage models/net --data-since v1:models/net
        tensorrepo lineage models/net --reproducible
    """
    ask = partial(_lineage_of, session_of(context, repo), handle_of(context, repo))
    lineage = ask(path, all_versions=all_versions)
    if deleted:
        _show_deleted(lineage, as_json=as_json)
    elif data_since is not None:
        _show_changes(ask(data_since), lineage, as_json=as_json)
    elif reproducible:
        _show_findings(lineage, as_json=as_json)
    else:
        kin: dict[str, Kinship] = {}
        if up or not down:
            kin["ancestors"] = lineage.ancestors(depth=depth, relations=relation or ())
        if down:
            kin["descendants"] = lineage.descendants(depth=depth, relations=relation or ())
        _show_kin(kin, dot=dot, as_json=as_json)


def _lineage_of(
    session: Session, handle: Repository, text: str, *, all_versions: bool = False
) -> Lineage:
    if "://" in text or text.startswith("runs/"):
        return handle.lineage(text)
    ref, path = split_path(text) if ":" in text else (session.default_ref, text)
    commit = session.resolve(ref).digest
    return handle.lineage(path or "", commit, all_versions=all_versions)


def _show_kin(kin: dict[str, Kinship], *, dot: bool, as_json: bool) -> None:
    if as_json:
        output.json_value({name: kinship.to_json() for name, kinship in kin.items()})
        return
    if dot:
        one, *others = kin.values()
        output.line(one.joined(others[0]).dot() if others else one.dot())
        return
    for name, kinship in kin.items():
        if len(kin) > 1:
            output.line(f"{name}:")
        output.lines(output.printable(text, keep="\n") for text in kinship.lines())


def _show_deleted(lineage: Lineage, *, as_json: bool) -> None:
    columns = {
        "model": "model.path",
        "version": lambda saw: saw.model.key[:12],
        "trained on": lambda saw: saw.dataset.key[:12],
        "rows gone": "summary",
        "saw of it": "seen",
    }
    empty = "no model was trained on rows that are gone"
    records = lineage.saw_deleted()
    output.show(records, columns, as_json=as_json, document=_summarized, empty=empty)


def _show_changes(old: Lineage, new: Lineage, *, as_json: bool) -> None:
    columns = {
        "dataset": "path",
        "old": lambda change: (change.old or "-")[:12],
        "new": lambda change: (change.new or "-")[:12],
        "what differs": "summary",
    }
    empty = "of neither model is it known what it was trained on"
    changes = old.data_changes(new)
    output.show(changes, columns, as_json=as_json, document=_summarized, empty=empty)


def _summarized(record: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(record), "summary": record.summary}


def _show_findings(lineage: Lineage, *, as_json: bool) -> None:
    findings = lineage.reproducible()
    columns = {"": lambda one: "yes" if one.ok else "NO", "needed": "what", "why": "why"}
    output.show(findings, columns, as_json=as_json)
    if not all(one.ok for one in findings):
        raise Exit(NOTHING_TO_DO)
