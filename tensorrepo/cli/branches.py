"""Branches, tags, HEAD, and entries written out as files: `branch`, `switch`, `export`, ..."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import (
    CommandCall,
    FormatSettings,
    RepoCall,
    StoredModelArgument,
    complete_branch,
    complete_entry,
    complete_ref,
    complete_tag,
    entry_hint,
    signing_repository,
)
from tensorrepo.formats.exchange.registry import parse_options
from tensorrepo.formats.files.hub_cache import HUB_CACHE, write_hub_cache
from tensorrepo.formats.model.merging.new_model import ModelRef
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.moments import moment_text
from tensorrepo.repo.changes.refs import BRANCHES, REMOTES
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import contained, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.change import find_model
from tensorrepo.workspace.checkout import (
    WrittenFiles,
    checkout_paths,
    export,
    switch,
    update_tracked,
)
from tensorrepo.workspace.session import WorkspaceSession


def branch_command(
    call: RepoCall,
    name: Annotated[
        str | None, Argument(help="A branch to make.", autocompletion=complete_branch)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="Where it begins; else at HEAD.", autocompletion=complete_ref)
    ] = None,
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    move: Annotated[
        bool, Option("--rename", help="Rename NAME to REF; alone: this branch to NAME.")
    ] = False,
    verbose: Annotated[
        bool, Option("-v", "--verbose", help="List with the last commit of each.")
    ] = False,
    merged: Annotated[
        bool, Option("--merged", help="List those that NAME, or else HEAD, has all of.")
    ] = False,
    remotes: Annotated[
        bool, Option("-r", "--remotes", help="List branches of remotes, as of the last fetch.")
    ] = False,
    no_merged: Annotated[
        bool, Option("--no-merged", help="List those that have commits which NAME, or HEAD, lacks.")
    ] = False,
) -> None:
    """List, make, rename or delete branches.

    A deleted branch's commits are kept for a while: `tensorrepo branch NAME DIGEST` brings it back.

    Examples:
        tensorrepo branch -v
        tensorrepo branch --merged main
        tensorrepo branch -r
        tensorrepo branch cleaning v1
        tensorrepo branch --rename cleaning cleaned
        tensorrepo branch -d cleaned
    """
    session = call.session
    if (delete and (move or ref)) or (name is None and (delete or move)):
        raise InvalidInputError("give `branch -d NAME`, or `branch --rename [OLD] NEW`")
    if remotes and (name or delete or move or merged or no_merged):
        raise InvalidInputError("--remotes lists all branches of remotes: give it alone")
    if merged and no_merged:
        raise InvalidInputError("give one of --merged and --no-merged")
    if merged or no_merged:
        tip = session.resolve(name).digest
        known = session.repository.log.refresh().state.refs.items()
        tips = [at for ref, at in known if ref.startswith(refs.BRANCHES)]
        held = contained(session.repository.objects, tips, tip)
        _list_refs(call, refs.BRANCHES, lambda at: (at in held) is merged, verbose=verbose)
    elif remotes:
        _list_refs(call, REMOTES, verbose=verbose)
    elif name is None:
        _list_refs(call, refs.BRANCHES, verbose=verbose)
    elif delete:
        _delete_branch(call, name)
    elif move:
        _rename(call, *((name, ref) if ref else (session.branch(), name)))
    else:
        at = session.resolve(ref).digest
        refs.create_branch(session.repository, name, at, actor=session.author())
        call.answer({"branch": name, "commit": at}, f"Branch {name} is at {at:.12}.")


def tag_command(
    call: RepoCall,
    name: Annotated[
        str | None, Argument(help="A tag to make.", autocompletion=complete_tag)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="The commit it names; else HEAD.", autocompletion=complete_ref)
    ] = None,
    message: Annotated[str, Option("-m", "--message", help="A note kept with it.")] = "",
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    force: Annotated[bool, Option("--force", help="Needed to delete.")] = False,
    sign: Annotated[
        bool, Option("-S", "--sign", help="Sign it with the key of `user.signingkey`.")
    ] = False,
) -> None:
    """List, make or delete tags. A tag never moves.

    Examples:
        tensorrepo tag
        tensorrepo tag v1
        tensorrepo tag v0.9 main~3 -m "before the relabelling"
        tensorrepo tag v1.0 -S
        tensorrepo tag -d v0.9 --force
    """
    session = call.session
    if delete and (name is None or ref):
        raise InvalidInputError("give `tag -d NAME --force`")
    if name is None:
        _list_refs(call, refs.TAGS)
    elif delete:
        if not force:
            raise ConflictError(
                f"others may rely on tag {name!r}: repeat with --force to delete it"
            )
        old = refs.delete_ref(session.repository, refs.TAGS + name, actor=session.author())
        value = {"deleted": name, "commit": old}
        call.answer(value, f"Deleted tag {name} (was {old:.12}).")
    else:
        at = session.resolve(ref).digest
        repository = signing_repository(call) if sign else session.repository
        refs.create_tag(repository, name, at, actor=session.author(), note=message)
        value = {"tag": name, "commit": at}
        call.answer(value, f"Tag {name} names {at:.12}.")


def _delete_branch(call: CommandCall, name: str) -> None:
    session = call.session
    head = session.head
    if head is not None and head.branch == name:
        raise ConflictError(f"the workspace is on branch {name!r}: switch to another one first")
    old = refs.delete_ref(session.repository, refs.BRANCHES + name, actor=session.author())
    value = {"deleted": name, "commit": old}
    back = f"`tensorrepo branch {name} {old:.12}` brings it back."
    call.answer(value, f"Deleted branch {name} (was {old:.12}). {back}")


def _rename(call: CommandCall, old: str, new: str) -> None:
    session = call.session
    refs.rename_branch(session.repository, old, new, actor=session.author())
    head = session.head
    if head is not None and head.branch == old:
        session.here.set_head(Head(branch=new))
    call.answer({"branch": new, "was": old}, f"Branch {old} is {new} now.")


def _list_refs(
    call: CommandCall,
    space: str,
    wanted: Callable[[Digest], bool] = lambda _: True,
    *,
    verbose: bool = False,
) -> None:
    """List branches or tags whose commits are `wanted`; `verbose`: with what these are."""
    session = call.session
    state = session.repository.log.refresh().state
    named = {
        ref.removeprefix(space): at
        for ref, at in sorted(state.refs.items())
        if ref.startswith(space) and wanted(at)
    }
    head = session.head if space == refs.BRANCHES else None
    if call.as_json:
        here = None if head is None else head.branch
        kept = space == refs.BRANCHES
        output.json_lines(
            {"name": name, "commit": at}
            | ({"current": name == here} if kept else {})
            | (_told(session, at) if verbose else {})
            for name, at in sorted(named.items())
        )
        return
    if head is not None and head.branch is None:
        output.line(f"* (detached at {head.commit:.12})")
    elif head is not None and f"{space}{head.branch}" not in state.refs:
        output.line(f"* {head.branch} (no commit yet)")
    width = max(map(len, named), default=0) if verbose else 0
    for name, at in named.items():
        told = "  {time:.16}  {author}: {subject}".format_map(_told(session, at)) if verbose else ""
        mark = "*" if head and name == head.branch else " "
        output.line(f"{mark} {name:{width}} {at:.12}{told}")


def _told(session: WorkspaceSession, at: Digest) -> dict[str, str]:
    """What a commit is, in short."""
    commit = read_commit(session.repository.objects, at)
    return {
        "commit": at,
        "time": moment_text(commit.time_ns),
        "author": commit.author.partition(" <")[0],
        "subject": commit.message.partition("\n")[0],
    }


def switch_command(
    call: CommandCall,
    branch: Annotated[
        str,
        Argument(
            help="A branch, - for the one before, or with --detach any commit.",
            autocompletion=complete_branch,
        ),
    ],
    start: Annotated[
        str | None,
        Argument(help="Where a new branch starts; else at HEAD.", autocompletion=complete_ref),
    ] = None,
    create: Annotated[bool, Option("-c", "--create", help="Make the branch first.")] = False,
    detach: Annotated[bool, Option("--detach", help="Stand at a commit, no branch.")] = False,
    keep: Annotated[bool, Option("--keep", help="Carry staged changes over.")] = False,
    update: Annotated[
        bool, Option("--update", help="Write clean tracked files anew as the branch has them.")
    ] = False,
) -> None:
    """Put the workspace on another branch. Writes no data, unless asked to.

    Examples:
        tensorrepo switch main
        tensorrepo switch -c cleaning
        tensorrepo switch -c mended v1
        tensorrepo switch --detach v1
    """
    session = call.session
    with session.here.locked():
        head = switch(session, branch, create=create, start=start, detach=detach, keep=keep)
        show_head(call, head, update=update)


def undo_command(call: CommandCall) -> None:
    """Take back your last change of this branch, as a new record of the log.

    Refused when somebody else changed the branch after you.

    Examples:
        tensorrepo undo
        tensorrepo redo
    """
    _take_back(call, "undo")


def redo_command(call: CommandCall) -> None:
    """Take back the last undo of this branch.

    Examples:
        tensorrepo redo
    """
    _take_back(call, "redo")


def reset_command(
    call: CommandCall,
    ref: Annotated[
        str, Argument(help="The commit to move this branch to.", autocompletion=complete_ref)
    ],
) -> None:
    """Move this branch to another commit. The old place stays in the branch's history: BRANCH@{1}.

    Examples:
        tensorrepo reset HEAD~1
        tensorrepo reset main@{1}
    """
    session = call.session
    name = session.branch()
    at = session.resolve(ref)
    move = refs.reset_branch(session.repository, name, at.digest, actor=session.author())
    _report(call, name, move)


def show_head(call: CommandCall, head: Head, *, update: bool) -> None:
    """Tell where the workspace stands now; with `update` write clean tracked files anew."""
    session = call.session
    value: dict[str, Any] = {"branch": head.branch, "commit": session.tip_of(head)}
    lines = [describe_head(head)]
    if update:
        written, skipped = update_tracked(session)
        root = session.here.root
        places = [one.path.relative_to(root).as_posix() for one in written]
        value |= {"written": places, "left": skipped}
        lines += [f"wrote {path}" for path in places]
        for path in skipped:
            output.note(f"left {path}: it was changed on disk")
    call.answer(value, *lines)


def describe_head(head: Head) -> str:
    """HEAD for people."""
    if head.branch is not None:
        return f"On branch {head.branch}."
    return (
        f"HEAD is detached at {head.commit:.12}. `tensorrepo switch -c NAME` makes a branch here."
    )


def _take_back(call: CommandCall, verb: str) -> None:
    session = call.session
    step = refs.undo if verb == "undo" else refs.redo
    with session.here.locked():
        name = session.branch()
        move = step(session.repository, name, actor=session.author())
        if move.renamed is None:
            _report(call, name, move)
            return
        other = move.renamed.ref.removeprefix(refs.BRANCHES)
        gone, back = (other, name) if move.renamed.new is None else (name, other)
        session.here.set_head(Head(branch=back))
    commit = move.update.old or move.update.new
    value = {"branch": back, "commit": commit, "was": commit, "renamed": gone}
    call.answer(value, f"Branch {gone} is {back} again.")


def _report(call: CommandCall, name: str, move: refs.Move) -> None:
    old, new = move.update.old, move.update.new
    state = f"is at {new:.12}" if new else "has no commit"
    was = f"was at {old:.12}" if old else "had none"
    call.answer({"branch": name, "commit": new, "was": old}, f"Branch {name} {state} now ({was}).")


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
            with output.write_progress(f"writing {', '.join(paths)}") as advance:
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
