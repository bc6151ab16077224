"""Command `import`: a history of another tool."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.import_history import TOOLS, ImportedHistory, Missing, import_history

_SHOWN = 20


def import_command(
    call: RepoCall,
    path: Annotated[Path, Argument(metavar="FOLDER", help="Repository of another tool.")],
    tool: Annotated[
        str | None,
        Option(
            "--tool",
            metavar="TOOL",
            help="git, dvc or huggingface; else it is told by what is there.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        Option("--as", metavar="NAME", help="Of a model that all of a commit is."),
    ] = None,
    prefix: Annotated[
        str, Option("--prefix", metavar="TEXT", help="What branches and tags begin with here.")
    ] = "",
    missing: Annotated[
        str, Option("--missing", help="For files whose content is not there: refuse or skip.")
    ] = "refuse",
) -> None:
    """Import a repository of another tool with its history: commits, branches and tags.

    FOLDER is a git repository, whose git-lfs objects are read where they lie; a DVC project, whose
    data are read from its cache; or what Hugging Face's libraries downloaded: a folder
    models--NS--NAME of their cache, with all revisions, or one that local_dir= filled. Nothing is
    fetched, and nothing there is changed. Every content is verified by what names it.

    Weights become models: a folder of safetensors with their config is one, another file of weights
    is one by itself. The rest are files. An import that was cut off goes on: give the same command
    again. So does one that is repeated later, with what is new.

    Examples:
        tensorrepo import ../project
        tensorrepo import ~/.cache/huggingface/hub/models--lab--bert
        tensorrepo import ../project --prefix upstream/ --missing skip
    """
    choice: Missing = "skip" if missing == "skip" else "refuse"
    if missing != choice:
        raise InvalidInputError(f"--missing {missing!r:.40}: expected refuse or skip")
    if tool is not None and tool not in TOOLS:
        raise InvalidInputError(f"--tool {tool!r:.40}: expected one of {', '.join(TOOLS)}")
    with output.row_progress(f"importing {path}", "commits") as advance:
        made = import_history(
            handle_of(call).context,
            call.path(str(path)),
            tool=tool,
            name=name,
            prefix=prefix,
            missing=choice,
            progress=lambda done, total, _: advance(done, total),
        )
    call.answer(asdict(made), *_lines(made))
    for note in () if call.as_json else (*made.notes, *_left_out(made)):
        output.note(f"note: {note}")


def _lines(made: ImportedHistory) -> list[str]:
    new = f"{output.counted(made.commits, 'commit')} of {made.tool}"
    known = f", {made.known:,} were here" if made.known else ""
    stored = (
        f"{output.counted(made.models, 'model')} and {output.counted(made.files, 'file')} stored"
    )
    refs = [f"branch {each} is at {at:.12}" for each, at in made.branches.items()]
    refs += [f"tag {each} is at {at:.12}" for each, at in made.tags.items()]
    more = [f"and {len(refs) - _SHOWN} more"] if len(refs) > _SHOWN else []
    return [f"imported {new}{known}; {stored}", *refs[:_SHOWN], *more]


def _left_out(made: ImportedHistory) -> list[str]:
    shown = [
        f"left out {one.path} of commit {one.commit:.12}: {one.why}"
        for one in made.left_out[:_SHOWN]
    ]
    more = len(made.left_out) - _SHOWN
    return [*shown, *([f"{more} more files are left out; --json tells all"] if more > 0 else [])]
