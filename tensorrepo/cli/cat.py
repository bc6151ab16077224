"""Contents of an entry, printed: `cat`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    RepoCall,
    VerticalOption,
    WhereOption,
    WholeBytesOption,
    column_names,
    complete_place,
)
from tensorrepo.describe import file_json
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.repo.objects.blob_bytes import open_blob
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs.preview import PreviewRequest, preview
from tensorrepo.workspace.session import find_staged


def cat_command(
    call: RepoCall,
    entry: Annotated[
        str, Argument(metavar="[REF:]PATH", help="The entry.", autocompletion=complete_place)
    ],
    limit: Annotated[int, Option("-n", "--limit", min=0, help="How many rows of a dataset.")] = 10,
    start: Annotated[int, Option("--start", min=0, help="Rows to pass over.")] = 0,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    staged: Annotated[bool, Option("--staged", help="As it is staged, PATH alone.")] = False,
    vertical: VerticalOption = False,
    whole_bytes: WholeBytesOption = "1KiB",
) -> None:
    """Print an entry: rows of a dataset, tensors of a model, the bytes of a file.

    Classes are shown by their names, what is missing as null. On a terminal long values are cut,
    and rows that are wider than it stand one value a line; in a pipe every value is whole, but
    tensors and bytes: --json has them.

    Examples:
        tensorrepo cat photos -n 3
        tensorrepo cat photos --columns file,label --where "label == 'cat'"
        tensorrepo cat photos --staged
        tensorrepo cat v1:models/classifier
        tensorrepo cat files/README.md
    """
    session = call.session
    path, stored = find_staged(session, entry) if staged else session.find(entry)[1:]
    objects, whole = session.repository.objects, byte_size("--bytes", whole_bytes)
    if stored.kind is Kind.BLOB:
        if call.as_json:
            call.answer(file_json(path, objects.get(stored.digest).payload, whole))
            return
        for piece in open_blob(objects, stored.digest, path, LimitedCache(1)).pieces():
            output.raw(piece)
        return
    request = PreviewRequest(start, limit, column_names(columns), where)
    shown = preview(objects, path, stored, session.outside, request)
    if call.as_json:
        output.json_lines(
            {name: value_json(value, whole) for name, value in record.items()}
            for _, record in shown.records
        )
        return
    most = output.cell_characters(vertical=vertical)
    rows = [
        (
            *(() if number is None else (str(number),)),
            *(value_text(record[name], most) for name in shown.columns),
        )
        for number, record in shown.records
    ]
    numbered = stored.kind is not Kind.MODEL
    output.data_table(((">row",) if numbered else ()) + shown.columns, rows, vertical=vertical)
