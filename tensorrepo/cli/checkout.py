"""Entries written out as files: `checkout`, `export`, `model export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.branches import show_head
from tensorrepo.cli.options import (
    CommandCall,
    FormatSettings,
    RepoCall,
    StoredModelArgument,
    complete_entry,
    complete_ref,
    entry_hint,
)
from tensorrepo.formats.exchange.registry import parse_options
from tensorrepo.formats.files.hub_cache import HUB_CACHE, write_hub_cache
from tensorrepo.formats.model.merging.new_model import ModelRef
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.workspace.change import find_model
from tensorrepo.workspace.checkout import WrittenFiles, checkout_paths, export
from tensorrepo.workspace.switch import switch


def checkout_command(
    call: CommandCall,
    ref: Annotated[
        str | None, Argument(help="A branch, tag or commit.", autocompletion=complete_ref)
    ] = None,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="PATH", help="Entries to write out.", autocompletion=complete_entry),
    ] = None,
    new: Annotated[
        str | None, Option("-b", metavar="NAME", help="Make branch NAME at REF, and switch to it.")
    ] = None,
    to: Annotated[str | None, Option("--to", metavar="DIR", help="Write them into DIR.")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite files that were changed.")] = False,
    detach: Annotated[bool, Option("--detach", help="Stand at a commit, no branch.")] = False,
    keep: Annotated[bool, Option("--keep", help="Carry staged changes over.")] = False,
    update: Annotated[
        bool, Option("--update", help="Write clean tracked files anew as REF has them.")
    ] = False,
) -> None:
    """Switch to a branch or a commit; with PATHs: write entries as ordinary files.

    Writing files does not move the branch. What is written is tracked: `status` tells when it was
    changed, and `add` knows its name. A changed file is never overwritten without --force.

    Examples:
        tensorrepo checkout cleaning
        tensorrepo checkout v1
        tensorrepo checkout main photos
        tensorrepo checkout v1 datasets/photos models/classifier --to old/
    """
    session = call.session
    if new is not None:
        if paths or to is not None or detach:
            raise InvalidInputError("-b NAME [REF] makes a branch and switches to it: no more")
        with session.here.locked():
            head = switch(session, new, create=True, start=ref, keep=keep)
            show_head(call, head, update=update)
        return
    if ref is None:
        raise InvalidInputError("say what to check out: a branch, tag or commit, or -b NAME")
    with session.here.locked():
        if paths:
            folder = call.path(to) if to is not None else None
            what = paths[0] if len(paths) == 1 else f"{len(paths):,} paths"
            with output.write_progress(f"writing {what}") as advance:
                written = checkout_paths(
                    session, ref, paths, to=folder, force=force, progress=advance
                )
            show_written(call, written)
            return
        if to is not None:
            raise InvalidInputError("--to needs the PATHs to write")
        if ref == "-":
            show_head(call, switch(session, ref, keep=keep), update=update)
            return
        try:
            revision = session.resolve(ref)
        except NotFoundError as error:
            hint = (
                f"{ref!r} is no branch, tag or commit but an entry: `tensorrepo checkout HEAD "
                "{path}` writes it as ordinary files"
            )
            raise entry_hint(session, ref, hint, error) from None
        is_branch = revision.ref is not None and revision.ref.startswith(BRANCHES)
        head = switch(session, ref, detach=detach or not is_branch, keep=keep)
        show_head(call, head, update=update)


def export_command(
    call: RepoCall,
    name: Annotated[
        str, Argument(metavar="NAME[@REF]", help="The entry.", autocompletion=complete_entry)
    ],
    to: Annotated[str, Option("--to", metavar="PATH", help="Where to write it.")],
    format_name: Annotated[
        str | None, Option("--format", help="The format; else told by PATH's suffix.")
    ] = None,
    option: FormatSettings = None,
    force: Annotated[bool, Option("--force", help="Overwrite what is at PATH.")] = False,
) -> None:
    """Write an entry in a foreign format. It is not tracked.

    Examples:
        tensorrepo export photos --to photos.parquet
        tensorrepo export photos@v1 --format images --to /tmp/photos
        tensorrepo export classifier --to model.safetensors
    """
    session = call.session
    target, options = call.path(to), parse_options(option or [])
    with output.write_progress(f"writing {name}") as advance:
        written = export(
            session, name, target, format_name, force=force, options=options, progress=advance
        )
    show_written(call, [written])


def show_written(call: CommandCall, written: list[WrittenFiles]) -> None:
    """Tell which files an entry became."""
    session = call.session
    if call.as_json:
        output.json_value([output.to_document(each) for each in written])
        return
    for one in written:
        inside = session.workspace and one.path.is_relative_to(session.workspace.root)
        shown = one.path.relative_to(session.here.root) if inside else one.path
        count = output.counted(one.files, "file")
        output.line(f"wrote {shown} ({one.format}, {count}, {output.bytes_text(one.bytes)})")
        if one.source:
            name = one.entry.removeprefix("datasets/")
            output.note(
                f"note: {name} came as {one.source}, which may not hold all that it has: "
                f"`tensorrepo export {name} --to PATH --format {one.source}` tries"
            )


def model_export_command(
    call: RepoCall,
    name: StoredModelArgument,
    out: Annotated[str, Option("--to", metavar="PATH", help="Where to write it.")],
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            help="safetensors, gguf, onnx, torch, npz, npy, hf, snapshot or hf-cache; "
            "else told by PATH's suffix.",
        ),
    ] = None,
    shard_bytes: Annotated[
        str | None,
        Option("--shard-bytes", metavar="SIZE", help="Of hf: size of a file of weights."),
    ] = None,
    repo_id: Annotated[
        str | None,
        Option("--id", metavar="NS/NAME", help="Of hf-cache: what libraries ask for."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite what is at PATH.")] = False,
) -> None:
    """Write a model in a foreign format.

    What came as a file of that format is given back byte for byte. hf-cache is the layout of
    Hugging Face's cache, in which its libraries find the model without a network.

    Examples:
        tensorrepo model export net --to net.safetensors
        tensorrepo model export v1:net --format gguf --to /tmp/net.gguf
        tensorrepo model export net --format hf --shard-bytes 5GB --to net-hf
        tensorrepo model export net --format hf-cache --id me/net --to ~/.cache/huggingface/hub
    """
    session = call.session
    model = find_model(session, name)
    target = call.path(out)
    if (format_name == HUB_CACHE) != (repo_id is not None):
        raise InvalidInputError("--format hf-cache and --id NS/NAME go together")
    if repo_id is not None:
        _export_to_hub_cache(call, model, target, repo_id)
        return
    options = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
    with output.write_progress(f"writing {name}") as advance:
        pinned = f"{model.path}@{model.commit}"
        written = export(
            session, pinned, target, format_name, force=force, options=options, progress=advance
        )
    show_written(call, [written])


def _export_to_hub_cache(call: RepoCall, model: ModelRef, hub: Path, repo_id: str) -> None:
    assert model.commit is not None, "a model that is not staged lies in a commit"
    with output.write_progress(f"writing {repo_id}") as advance:
        done = 0

        def progress(size: int) -> None:
            nonlocal done
            done += size
            advance(done, model.model.size_bytes, "bytes")

        written = write_hub_cache(model.model, hub, repo_id, commit=model.commit, progress=progress)
    count, size = output.counted(written.files, "file"), output.bytes_text(written.bytes)
    call.answer(
        {"path": str(written.path), "files": written.files, "bytes": written.bytes},
        f"wrote {written.path} ({count}, {size}). With HF_HUB_OFFLINE=1 libraries find {repo_id}.",
    )
