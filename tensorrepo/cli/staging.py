"""Commands on staged entries: `add`, `adopt`, `rm`, `mv`, `restore`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from dataclasses import replace as replaced
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    ColumnsOption,
    CommandCall,
    ExecutorOption,
    FormatOption,
    FormatSettings,
    RayAddressOption,
    column_names,
    complete_entry,
    complete_place,
    complete_ref,
)
from tensorrepo.cli.sdk_handle import cluster_context
from tensorrepo.context import Context
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.common.provenance import public_place
from tensorrepo.formats.dataset.schema.lenient import parse_on_error
from tensorrepo.formats.dataset.versions.conflicts import SideName
from tensorrepo.formats.exchange.registry import parse_options
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.exchange import AdoptionRequest, is_remote, local_path
from tensorrepo.workspace.add import adopt_and_stage
from tensorrepo.workspace.add_paths import add_all, named_requests
from tensorrepo.workspace.add_request import SYNC_MODES, Added, AddMode, AddRequest
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staging import move, remove, restore, unstage


def add_command(
    call: CommandCall,
    paths: Annotated[
        list[str],
        Argument(metavar="PATH_OR_URL...", help="Files or folders; - is standard input."),
    ],
    dataset: Annotated[
        str | None, Option(metavar="NAME", help="Add as a dataset.", autocompletion=complete_entry)
    ] = None,
    model: Annotated[
        str | None, Option(metavar="NAME", help="Add as a model.", autocompletion=complete_entry)
    ] = None,
    file: Annotated[
        str | None, Option(metavar="NAME", help="Add as it is.", autocompletion=complete_entry)
    ] = None,
    append: Annotated[bool, Option("--append", help="Add its rows to NAME.")] = False,
    upsert: Annotated[
        str | None,
        Option(metavar="KEY[,KEY]", help="Update rows whose key NAME has, append others."),
    ] = None,
    sync: Annotated[
        bool, Option("--sync", help="Put on NAME what changed in PATH since it was last seen.")
    ] = False,
    mirror: Annotated[
        bool, Option("--mirror", help="Make the rows of NAME those of PATH, whatever they were.")
    ] = False,
    replace: Annotated[
        bool, Option("--replace", help="Make NAME what PATH is: its rows and columns.")
    ] = False,
    key: Annotated[
        str | None,
        Option(metavar="COL[,COL]", help="What tells rows apart; else the dataset's key."),
    ] = None,
    ours: Annotated[
        bool, Option("--ours", help="Of cells that --sync finds changed twice, keep NAME's.")
    ] = False,
    theirs_source: Annotated[
        bool,
        Option("--theirs-source", help="Of cells that --sync finds changed twice, take PATH's."),
    ] = False,
    format_name: FormatOption = None,
    option: FormatSettings = None,
    on_error: Annotated[
        str, Option("--on-error", help="For rows that do not fit: raise, skip or null.")
    ] = "raise",
    codec: Annotated[
        str, Option(help="Of its pages: none, zstd, shuffle, bitpack, or auto.")
    ] = DEFAULT_CODEC,
    progressive: Annotated[
        bool,
        Option("--progressive", help="Store JPEGs of a new dataset so that parts of them suffice."),
    ] = False,
    progressive_beside: Annotated[
        bool,
        Option("--progressive-beside", help="Store small pictures of JPEGs beside the files."),
    ] = False,
    base: Annotated[
        str | None,
        Option(
            metavar="[REF:]NAME",
            help="Of a model: the stored one that it came from. Else similar ones are found.",
            autocompletion=complete_entry,
        ),
    ] = None,
    derived_from: Annotated[
        list[str] | None,
        Option(
            "--derived-from",
            metavar="[REF:]NAME|URL",
            help="What it was made of, or a model trained on; repeatable.",
            autocompletion=complete_entry,
        ),
    ] = None,
    executor: ExecutorOption = "thread",
    ray_address: RayAddressOption = None,
) -> None:
    """Read files or folders, or what URLs name; store them, and stage them for the next commit.

    Without --dataset, --model or --file each is what its content says, and is called as PATH is.
    With --dataset the rows of several come one after the other. All of them are staged, or none.

    Datasets: a folder of images (a folder for each class, or with a table of labels), COCO, YOLO,
    Parquet, Arrow, CSV, JSON, JSON lines, text, sounds, npy, npz, IDX (as MNIST), HDF5, Lance,
    Hugging Face datasets, WebDataset, TFRecord, MDS, LMDB, beton, MindRecord. Models: safetensors,
    PyTorch checkpoints, npz. The format is told by content, or by --format. A name that exists
    needs --append, --upsert, --sync, --mirror or --replace: rows keep their ids, and what did not
    change is not stored again. What `checkout` wrote knows its name, and means --sync. A long one
    that was cut off goes on where it was: give the same command again. With --executor ray workers
    of a cluster store the rows of a dataset; tables they open where they lie.

    Examples:
        tensorrepo add photos/ --dataset photos
        tensorrepo add users.csv classifier.safetensors
        tensorrepo add 2026-*.parquet --dataset users --append
        tensorrepo add - --format csv --dataset users < users.csv
        tensorrepo add corrected.csv --dataset users --upsert id
        tensorrepo add model.safetensors --model classifier
        tensorrepo add tuned.safetensors --model tuned --base classifier
        tensorrepo add crops/ --dataset crops --derived-from v1:photos
        tensorrepo add photos/ --dataset photos --progressive
        tensorrepo add README.md --file README.md
        tensorrepo add data.csv --dataset table -o delimiter=";"
        tensorrepo add https://example.org/iris.csv --dataset iris
        tensorrepo add s3://bucket/photos/ --dataset photos
        tensorrepo add 2026-*.parquet --dataset users --executor ray
    """
    session = call.session
    modes = {
        AddMode.APPEND: append,
        AddMode.UPSERT: upsert is not None,
        AddMode.SYNC: sync,
        AddMode.MIRROR: mirror,
        AddMode.REPLACE: replace,
    }
    requests = _requests(
        session,
        paths,
        {"datasets": dataset, "models": model, "files": file},
        [mode for mode, wanted in modes.items() if wanted],
        format_name,
        parse_options(option or []),
    )
    request = requests[0]
    keys = tuple(name.strip() for name in (upsert or key or "").split(",") if name.strip())
    prefer: SideName | None = "ours" if ours else "theirs" if theirs_source else None
    if ours and theirs_source:
        raise InvalidInputError("give one of --ours and --theirs-source")
    if prefer is not None and request.mode is not AddMode.SYNC:
        raise InvalidInputError("--ours and --theirs-source settle what --sync finds changed twice")
    if key is not None and request.mode not in SYNC_MODES:
        raise InvalidInputError("--key goes with --sync, --mirror or --replace")
    parse_codec(codec)
    if (progressive or progressive_beside) and request.space != "datasets":
        raise InvalidInputError("--progressive is for datasets of images")
    if progressive and progressive_beside:
        raise InvalidInputError("give one of --progressive and --progressive-beside")
    if base is not None and request.space != "models":
        raise InvalidInputError("--base is for models: it goes with --model NAME")
    requests = [
        replaced(
            each,
            on_error=parse_on_error(on_error),
            codec=codec,
            key=keys,
            prefer=prefer,
            base=base,
            progressive="beside" if progressive_beside else progressive,
            derived_from=tuple(derived_from or ()),
        )
        for each in requests
    ]
    if derived_from and (request.space == "files" or request.mode in SYNC_MODES | {AddMode.UPSERT}):
        raise InvalidInputError("--derived-from goes with models, new datasets and --append")
    workers = cluster_context(call, executor, ray_address)
    if workers is not None:
        requests = [_on_workers(requests, workers)]
    what = request.path if len(requests) == 1 else f"{len(requests)} paths"
    with session.here.locked(), output.progress(f"adding {what}", None) as advance:
        try:
            with standard_input(session) if STDIN in paths else nullcontext():
                added = add_all(session, requests, advance)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(session, requests)) from None
    for each in added:
        for note in () if call.as_json else each.notes:
            output.note(f"note: {note}")
    call.answer([asdict(each) for each in added], *map(_added_text, added))


def rm_command(
    call: CommandCall,
    names: Annotated[
        list[str],
        Argument(metavar="NAME", help="Entries to remove.", autocompletion=complete_entry),
    ],
) -> None:
    """Stage the removal of an entry. Files that `checkout` wrote stay on disk.

    Examples:
        tensorrepo rm datasets/photos
        tensorrepo rm old-model
    """
    session = call.session
    with session.here.locked():
        removed = remove(session, names)
    call.answer([{"removed": path} for path in removed], *(f"removes {path}" for path in removed))


def mv_command(
    call: CommandCall,
    old: Annotated[str, Argument(help="The entry.", autocompletion=complete_entry)],
    new: Annotated[str, Argument(help="Its new name.")],
) -> None:
    """Stage another name for an entry. No bytes move.

    Examples:
        tensorrepo mv photos pictures
        tensorrepo mv models/best models/champion
    """
    session = call.session
    with session.here.locked():
        source, target = move(session, old, new)
    call.answer({"from": source, "to": target}, f"renames {source} to {target}")


def restore_command(
    call: CommandCall,
    name: Annotated[
        str | None,
        Argument(
            help="An entry, or REF:ENTRY; with --staged none means all.",
            autocompletion=complete_place,
        ),
    ] = None,
    staged: Annotated[bool, Option("--staged", help="Unstage it.")] = False,
    source: Annotated[
        str | None,
        Option(
            "--source",
            metavar="REF",
            help="Stage it as it was at REF.",
            autocompletion=complete_ref,
        ),
    ] = None,
) -> None:
    """Unstage changes, or stage an entry as it was at another commit.

    Examples:
        tensorrepo restore --staged
        tensorrepo restore --staged photos
        tensorrepo restore photos --source HEAD~2
        tensorrepo restore v1:models/classifier
    """
    session = call.session
    if (staged and source is not None) or not (staged or name):
        raise InvalidInputError("give either --staged (unstage), or NAME --source REF")
    with session.here.locked():
        if staged:
            gone = unstage(session, name)
            call.answer(
                [{"unstaged": path} for path in gone], *(f"unstaged {path}" for path in gone)
            )
        else:
            assert name is not None, "checked above"
            path, ref, changed = restore(session, name, source)
            value = {"path": path, "source": ref, "changed": changed}
            line = f"staged {path} as of {ref}" if changed else f"{path} is as of {ref} already"
            call.answer(value, line)


def _on_workers(requests: list[AddRequest], workers: Context) -> AddRequest:
    """One request for all paths: workers store their rows side by side."""
    first = requests[0]
    if first.space != "datasets" or first.mode not in (AddMode.NEW, AddMode.APPEND):
        raise InvalidInputError("--executor ray stores the rows of a new dataset, or of --append")
    if len({each.path for each in requests}) > 1:
        raise InvalidInputError("with --executor ray all paths are one dataset: --dataset NAME")
    if len(requests) > 1 and any(each.url is not None for each in requests):
        raise InvalidInputError("with --executor ray give one URL, or paths that all workers see")
    return replaced(first, more=tuple(each.source for each in requests[1:]), workers=workers)


STDIN = "-"
COPIED_BYTES = 1 << 20


def _requests(
    session: WorkspaceSession,
    paths: list[str],
    names: dict[str, str | None],
    modes: list[AddMode],
    format_name: str | None,
    options: dict[str, object],
) -> list[AddRequest]:
    """What is to be added, of each path."""
    targets = [(space, name) for space, name in names.items() if name is not None]
    if len(targets) > 1 or len(modes) > 1:
        raise InvalidInputError(
            "give one of --dataset, --model, --file, and one of --append, --upsert, --sync, "
            "--replace"
        )
    if STDIN in paths:
        is_named = targets and (format_name is not None or targets[0][0] == "files")
        if len(paths) > 1 or not is_named:
            raise InvalidInputError(
                "standard input has no name and no suffix: `add - --format FORMAT --dataset NAME`, "
                "and no other path"
            )
        sources: list[tuple[Path, str | None]] = [(session.here.stdin_file, None)]
    else:
        sources = [_source(session, path) for path in paths]
    if not targets:
        named = [public_place(url) for _, url in sources if url]
        if named or (modes and modes[0] is not AddMode.SYNC):
            shown = named[0] if named else paths[0]
            raise InvalidInputError(f"say what {shown} is: --dataset, --model or --file NAME")
        return named_requests(session, [source for source, _ in sources], format_name, options)
    space, name = targets[0]
    mode = modes[0] if modes else AddMode.NEW
    if len(sources) > 1 and (space != "datasets" or mode in SYNC_MODES):
        raise InvalidInputError(
            f"{len(sources)} paths cannot be one of {space}, nor what it is synced with: give one, "
            "or a folder, or leave the name out"
        )
    more = AddMode.APPEND if mode is AddMode.NEW else mode
    return [
        AddRequest(
            source,
            space,
            name.removeprefix(f"{space}/"),
            more if at else mode,
            format_name,
            options,
            url=url,
        )
        for at, (source, url) in enumerate(sources)
    ]


def _source(session: WorkspaceSession, place: str) -> tuple[Path, str | None]:
    """Where a source lies, without what is secret in a URL; and the URL, of one."""
    if is_remote(place):
        return Path(public_place(place)), place
    return session.machine.path(local_path(place)), None


@contextmanager
def standard_input(session: WorkspaceSession) -> Iterator[None]:
    """Lay what is piped in down as a file, for readers that seek."""
    if sys.stdin.isatty():
        raise InvalidInputError("standard input is a terminal: pipe something into the command")
    file = session.here.stdin_file
    file.parent.mkdir(exist_ok=True)
    try:
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy, COPIED_BYTES)
        yield
    finally:
        file.unlink(missing_ok=True)


def _how_to_go_on(session: WorkspaceSession, requests: list[AddRequest]) -> str:
    """What to tell somebody who interrupted an `add`."""
    unfinished = session.here.unfinished()
    stored = next((unfinished[one.path] for one in requests if one.path in unfinished), None)
    if stored is None:
        return "Repeat the command to begin anew; `tensorrepo status` shows what is staged"
    return f"Repeat the command to go on behind the {stored.rows:,} rows that are stored"


def _added_text(added: Added) -> str:
    if not added.changed:
        return f"{added.path} is unchanged"
    parts = [output.counted(added.rows, "row")] if added.rows else []
    if added.updated or added.deleted:
        parts = [
            f"+{output.counted(added.rows, 'row')}, {added.updated:,} updated, -{added.deleted:,}"
        ]
    told = ", ".join([*parts, f"{output.bytes_text(added.bytes)} read"])
    return f"staged {added.path} ({told})"


def dataset_adopt_command(
    call: CommandCall,
    paths: Annotated[
        list[str], Argument(metavar="PATH_OR_URL...", help="Files, or folders of them.")
    ],
    dataset: Annotated[
        str, Option(metavar="NAME", help="The dataset.", autocompletion=complete_entry)
    ],
    append: Annotated[bool, Option("--append", help="Put the rows behind NAME's.")] = False,
    replace: Annotated[bool, Option("--replace", help="Start NAME anew.")] = False,
    format_name: Annotated[
        str | None,
        Option("--format", help="parquet, tar, npy or safetensors; else told by content."),
    ] = None,
    columns: ColumnsOption = None,
    hashed: Annotated[
        bool | None,
        Option(
            "--hash/--no-hash",
            help="Read the files once, so that copies of them are known; else only those here.",
        ),
    ] = None,
) -> None:
    """Stage a dataset whose rows stay in the files that they are in.

    Nothing is copied: Parquet files, WebDataset's tar archives, npy and safetensors files are
    described, and read where they lie. Whoever reads the dataset needs them, and must allow it:
    --allow-outside, or `tensorrepo config outside.allow`.

    Examples:
        tensorrepo dataset adopt /data/train.parquet --dataset train
        tensorrepo dataset adopt shards/ --dataset photos --no-hash
        tensorrepo dataset adopt s3://bucket/001.tar --dataset photos --append
    """
    session = call.session
    if append and replace:
        raise InvalidInputError("give one of --append and --replace")
    mode = AddMode.APPEND if append else AddMode.REPLACE if replace else AddMode.NEW
    names = column_names(columns)
    only = None if names is None else tuple(names)
    request = AdoptionRequest(tuple(paths), format_name, only, hashed)
    name = dataset.removeprefix("datasets/")
    with session.here.locked(), output.progress(f"adopting {name}", None) as advance:
        added = adopt_and_stage(session, name, mode, request, advance)
    size = output.bytes_text(added.bytes)
    text = f"staged {added.path} ({output.counted(added.rows, 'row')}, {size} stay where they are)"
    call.answer(asdict(added), text)
