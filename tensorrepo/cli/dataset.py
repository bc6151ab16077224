"""Datasets: `update`, `delete`, `dataset ls`, `column`, `set`, `compact`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    CommandCall,
    ExecutorOption,
    RayAddressOption,
    RepoCall,
    WhereOption,
    complete_entry,
    complete_ref,
    json_pair,
    pair,
)
from tensorrepo.cli.sdk_handle import cluster_context
from tensorrepo.context import Context
from tensorrepo.datasets.draft import DatasetDraft, Executor
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.selecting.select_rows import Where
from tensorrepo.query.compare.descriptions import EntryDescription, describe_entries
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.workspace.change import (
    Changed,
    Verb,
    change_dataset,
    parse_type,
    parse_value,
    values_of_file,
)

DatasetArgument = Annotated[
    str, Argument(metavar="DATASET", help="Its name.", autocompletion=complete_entry)
]
RowOption = Annotated[
    list[str] | None, Option("--row", metavar="N|ID", help="This row; may be repeated.")
]


def update_command(
    call: CommandCall,
    name: DatasetArgument,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="COLUMN=VALUE", help="A value; may be repeated."),
    ] = None,
    where: WhereOption = None,
    row: RowOption = None,
    sql: Annotated[
        list[str] | None,
        Option("--sql", metavar="COLUMN=EXPR", help="A value by SQL over the columns."),
    ] = None,
) -> None:
    """Give rows of a dataset other values, and stage it.

    VALUE is what the column holds: a number, true, false, text, a moment, JSON; null where it may
    be missing. EXPR is an SQL condition: ==, !=, <, <=, >, >=, in (...), between, like, is null,
    and, or, not, functions; classes are named in quotes.

    Examples:
        tensorrepo update photos --where "label == 'cat' and score < 0.5" --set label=dog
        tensorrepo update photos --row 17 --row 25 --set checked=true
        tensorrepo update users --where "city is null" --set city=unknown
        tensorrepo update photos --sql "score=score * 2" --where "score < 0.5"
    """
    texts = dict(pair(each, "--set", "COLUMN=VALUE") for each in settings or ())
    if bool(settings) == bool(sql):
        raise InvalidInputError("say which values: --set COLUMN=VALUE, or --sql COLUMN=EXPR")
    if sql:
        texts = dict(pair(each, "--sql", "COLUMN=EXPR") for each in sql)
        if row:
            raise InvalidInputError("--sql says which rows by --where, not by --row")
        _change(call, name, lambda draft, _: draft.update_sql(texts, where), "update")
        return

    def verb(draft: DatasetDraft, rows: Where) -> None:
        schema = draft.schema
        values = {each: parse_value(schema.column(each), text) for each, text in texts.items()}
        draft.update(rows, values)

    _change(call, name, verb, "update", _rows(where, row))


def delete_command(
    call: CommandCall, name: DatasetArgument, where: WhereOption = None, row: RowOption = None
) -> None:
    """Delete rows of a dataset, and stage it. `tensorrepo rm` removes the whole dataset.

    Examples:
        tensorrepo delete photos --where "consent == false"
        tensorrepo delete photos --row 17 --row 00c1d2e3f4a5b697:25
    """
    _change(call, name, lambda draft, rows: draft.delete(rows), "delete", _rows(where, row))


def dataset_ls_command(
    call: RepoCall,
    ref: Annotated[
        str | None, Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref)
    ] = None,
) -> None:
    """List the datasets of a commit: rows, columns and bytes.

    Examples:
        tensorrepo dataset ls
        tensorrepo dataset ls v1
    """
    session = call.session
    objects, tree = session.repository.objects, session.resolve(ref).commit.tree
    entries = (
        (path, entry)
        for path, entry in session.repository.entries(tree, "datasets/")
        if entry.kind is Kind.DATASET
    )
    found = describe_entries(objects, entries)
    columns = {
        "path": "path",
        ">rows": lambda entry: f"{entry.facts['rows']:,}",
        "columns": lambda entry: ", ".join(each["name"] for each in entry.facts["columns"]),
        ">bytes": lambda entry: output.bytes_text(entry.bytes),
    }
    call.show(found, columns, document=EntryDescription.to_json, empty="")


def dataset_column_command(
    call: CommandCall,
    action: Annotated[
        str, Argument(metavar="add|drop|rename|widen", help="What to do with a column.")
    ],
    name: DatasetArgument,
    column: Annotated[str, Argument(metavar="COLUMN", help="Its name.")],
    new: Annotated[
        str | None, Argument(metavar="[TYPE|NAME]", help="Its type, or its new name.")
    ] = None,
    default: Annotated[
        str | None, Option("--default", metavar="VALUE", help="Of rows without a value.")
    ] = None,
    nullable: Annotated[bool, Option("--nullable", help="Rows may have none.")] = False,
    values: Annotated[
        str | None, Option("--values", metavar="PATH", help="A file with a value for each row.")
    ] = None,
    sql: Annotated[
        str | None, Option("--sql", metavar="EXPR", help="Values by SQL over the columns.")
    ] = None,
) -> None:
    """Add, drop, rename or widen a column of a dataset, and stage it.

    TYPE is a dtype, text, json, bytes, image, link or timestamp; float32[768] and uint8[?,?,3] are
    tensors; or the JSON form of any type. Nothing but the values of a new column is written.

    Examples:
        tensorrepo dataset column add photos checked bool --default false
        tensorrepo dataset column add photos embedding --values embeddings.npy
        tensorrepo dataset column add photos double --sql "score * 2"
        tensorrepo dataset column rename photos label class
        tensorrepo dataset column widen photos width int64
        tensorrepo dataset column drop photos embedding
    """
    options = {
        "--default": default is not None, "--nullable": nullable, "--values": bool(values),
        "--sql": bool(sql),
    }  # fmt: skip
    allowed = {"add": set(options), "widen": {"--nullable"}, "drop": set(), "rename": set()}
    if action not in allowed:
        raise InvalidInputError(f"no action {action!r}: there are {', '.join(allowed)}")
    extra = [name for name, used in options.items() if used and name not in allowed[action]]
    if extra:
        raise InvalidInputError(f"`column {action}` takes no {extra[0]}")
    source = call.path(values) if values else None
    if sql and source is not None:
        raise InvalidInputError("values come from --sql or from --values, not from both")
    verb = _column_verb(action, column, new, default, source, sql, nullable=nullable)
    _change(call, name, verb, f"column {action} {column}")


def dataset_set_command(
    call: CommandCall,
    name: DatasetArgument,
    properties: Annotated[list[str], Argument(metavar="KEY=VALUE...", help="What to note.")],
) -> None:
    """Note properties of a dataset, and stage it: a licence, a source, which column is its key.

    VALUE is JSON where it is some, else text; null takes a property away. Others stay as they are.
    `tensorrepo show HEAD:NAME` shows them.

    Examples:
        tensorrepo dataset set photos licence=CC0 source="the shelter"
        tensorrepo dataset set photos key='["name", "split"]'
        tensorrepo dataset set photos source=null
    """
    values = dict(json_pair(each, "property", "KEY=VALUE") for each in properties)
    _change(call, name, lambda draft, _: draft.set_properties(**values), f"set {', '.join(values)}")


def dataset_compact_command(
    call: CommandCall,
    name: DatasetArgument,
    target: Annotated[str, Option("--target", help="Bytes of a fragment.")] = "64MiB",
    budget: Annotated[str, Option("--memory", help="Bytes of memory.")] = "256MiB",
    everything: Annotated[
        bool, Option("--everything", help="Write all rows anew, not only what is worn.")
    ] = False,
    executor: ExecutorOption = "thread",
    ray_address: RayAddressOption = None,
) -> None:
    """Write the worn parts of a dataset anew, and stage it.

    Worn are small fragments, deleted and patched rows, and files adopted in place. Rows keep their
    ids and their order. With --executor ray workers of a cluster write them.

    Examples:
        tensorrepo dataset compact photos
        tensorrepo dataset compact photos --target 128MiB --memory 1GiB
        tensorrepo dataset compact photos --executor ray --ray-address 10.0.0.1:6379
    """
    workers = cluster_context(call, executor, ray_address)

    def compact(draft: DatasetDraft, _: Where | None) -> object:
        who: Executor = "thread" if workers is None else "ray"
        return draft.compact(target, budget_bytes=budget, everything=everything, executor=who)

    _change(call, name, compact, "compact", workers=workers)


# ------------------------------------------------------------------------------ what is meant


def _rows(where: str | None, row: Sequence[str] | None) -> Where:
    if (where is None) == (not row):
        raise InvalidInputError("say which rows are meant: --where EXPR, or --row N")
    if where is not None:
        return where
    names = list(row or ())
    numbers = [each.removeprefix("-").isdigit() for each in names]
    if all(numbers):
        return [int(each) for each in names]
    if any(numbers):
        raise InvalidInputError("--row takes either numbers or ids in one command")
    return names


def _column_verb(
    action: str,
    column: str,
    new: str | None,
    default: str | None,
    source: Path | None,
    sql: str | None,
    *,
    nullable: bool,
) -> Verb:
    if action == "drop":
        if new is not None:
            raise InvalidInputError(f"`column drop` takes one column, got {new!r} too")
        return lambda draft, _: draft.drop_column(column)
    if action == "rename":
        wanted = _needed(new, "`column rename` needs the new name")
        return lambda draft, _: draft.rename_column(column, wanted)
    if action == "widen":
        wider = None if new is None else parse_type(new)
        return lambda draft, _: draft.widen_column(column, wider, nullable=nullable or None)
    if sql:
        declared = None if new is None else parse_type(new)
        return lambda draft, _: draft.add_column(column, declared, sql=sql)
    values = None
    if source is not None:
        kind, has_nulls, values = values_of_file(source, column)
        nullable = nullable or has_nulls
        kind = kind if new is None else parse_type(new)
    else:
        kind = parse_type(_needed(new, "`column add` needs a type, or --values"))
        nullable = nullable or default is None
    value = None if default is None else parse_value(Column(column, kind, nullable), default)
    return lambda draft, _: draft.add_column(column, kind, values, default=value, nullable=nullable)


def _needed(text: str | None, message: str) -> str:
    if text is None:
        raise InvalidInputError(message)
    return text


def _change(
    call: CommandCall,
    name: str,
    verb: Verb,
    what: str,
    where: Where | None = None,
    workers: Context | None = None,
) -> None:
    session = call.session
    with session.here.locked(), output.row_progress(f"changing {name}") as progress:
        changed = change_dataset(session, name, verb, what, where, progress, workers)
    call.answer(asdict(changed), _change_text(changed))


def _change_text(changed: Changed) -> str:
    if not changed.changed:
        why = ": no row is meant" if changed.chosen == 0 else ""
        return f"{changed.path} is unchanged{why}"
    if changed.chosen is not None and changed.rows == changed.rows_before:
        return (
            f"staged {changed.path} ({changed.chosen:,} of {output.counted(changed.rows, 'row')})"
        )
    before = "" if changed.rows == changed.rows_before else f", {changed.rows_before:,} before"
    return f"staged {changed.path} ({output.counted(changed.rows, 'row')}{before})"
