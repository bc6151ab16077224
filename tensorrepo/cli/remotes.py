"""Other repositories: `clone`, `fetch`, `push`, `pull`, `promote` and `remote`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall, LogOption, RepoCall, complete_branch, complete_entry
from tensorrepo.connect import author as author_of
from tensorrepo.connect import connect, is_url
from tensorrepo.repo.changes.refs import BRANCHES, REMOTES, TAGS
from tensorrepo.repo.changes.revisions import split_at
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.registry.versions import find_version, registered
from tensorrepo.repo.transfer.exchange import TransferReport
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.promotion import Promotion
from tensorrepo.repo.transfer.receive import TransferOptions
from tensorrepo.repo.transfer.ref_rules import MovedRef
from tensorrepo.verbs import transfer
from tensorrepo.verbs.transfer import CloneRequest, Here
from tensorrepo.workspace.picking import refuse_staged

LimitRate = Annotated[
    str | None, Option("--limit-rate", metavar="SIZE", help="So many bytes a second at most: 10MB.")
]


def _complete_remote(context: Context, incomplete: str) -> list[str]:
    """Names of remotes."""
    try:
        known = here(CommandCall(context)).remotes.urls()
    except Exception:  # noqa: BLE001  completion never fails
        return []
    return [name for name in known if name.startswith(incomplete)]


RemoteArgument = Annotated[
    str | None,
    Argument(metavar="REMOTE", help="A remote, or a URL.", autocompletion=_complete_remote),
]
DepthOption = Annotated[
    int | None, Option("--depth", min=1, help="So many commits back of each branch.")
]
NamedOption = Annotated[
    str | None, Option("--as", metavar="NAME", help="Of a promotion: its name there.")
]


def clone_command(
    call: CommandCall,
    url: Annotated[str, Argument(metavar="URL", help="A repository, or a bundle.")],
    place: Annotated[
        str | None, Argument(metavar="PLACE", help="Folder or URL to make; else URL's last part.")
    ] = None,
    bare: Annotated[bool, Option("--bare", help="Make a repository without a workspace.")] = False,
    mirror: Annotated[
        bool, Option("--mirror", help="Copy the log, too, and take no commits: a backup.")
    ] = False,
    lazy: Annotated[bool, Option("--lazy", help="Leave data at URL until it is read.")] = False,
    branch: Annotated[
        str | None, Option("--branch", metavar="NAME", help="Begin on this branch; else main.")
    ] = None,
    depth: DepthOption = None,
    remote: Annotated[
        str, Option("--remote", metavar="NAME", help="What URL is called; else origin.")
    ] = "origin",
    log: LogOption = None,
    limit_rate: LimitRate = None,
) -> None:
    """Copy a repository, with all its history, into a new folder or to a URL.

    The folder becomes a workspace. At a URL, and with --bare or --mirror, there is none. A clone
    that was cut off goes on when the command is repeated.

    Examples:
        tensorrepo clone s3://bucket/team
        tensorrepo clone s3://bucket/team work --lazy
        tensorrepo clone work s3://bucket/copy
        tensorrepo clone s3://bucket/team /backup/team --mirror
        tensorrepo clone s3://bucket/team --depth 10
        tensorrepo clone team s3://bucket/team --log postgresql://user@host/database
        tensorrepo clone team.bundle team
    """
    if mirror and (lazy or branch or depth):
        raise InvalidInputError("a mirror is a whole copy: no --lazy, --branch or --depth with it")
    if mirror and log is not None:
        raise InvalidInputError("a mirror keeps its copy of the log itself: no --log with it")
    machine = call.machine
    target = place or url.rstrip("/").rpartition("/")[2].removesuffix(".bundle")
    to_url = is_url(target)
    request = CloneRequest(
        url,
        target if to_url else str(machine.path(target)),
        workspace=not (bare or mirror or to_url),
        mirror=mirror,
        lazy=lazy,
        branch=branch,
        depth=depth,
        remote=remote,
        log=log,
    )
    with _moving(call, f"cloning {url}", limit_rate, somebody(call)) as options:
        made = transfer.clone(machine, request, options)
    where = str(made.workspace.root) if made.workspace else made.core.url
    value: dict[str, Any] = {"url": made.core.url, "branch": made.branch, "workspace": None}
    if made.workspace is not None:
        value["workspace"] = where
    what = "Mirrored" if mirror else "Cloned"
    on = f", on branch {made.branch}" if made.workspace and made.branch else ""
    lines = [f"{what} {url} into {where}{on}.", totals_line(made.report.totals)]
    if made.left_out:
        lines.append(
            f"Left out: {output.counted(made.left_out, 'ref')} of registered versions, which the "
            "service writes itself: `tensorrepo registry register --repo URL` registers there."
        )
        value["left_out"] = made.left_out
    if made.left_runs:
        lines.append(
            f"Left there: {output.counted(made.left_runs, 'run')}, with files and checkpoints. "
            "`tensorrepo fetch URL runs/NAME/record` brings one, a clone with --mirror has all."
        )
        value["left_runs"] = made.left_runs
    call.answer(value | totals_json(made.report.totals), *lines)


def fetch_command(
    call: RepoCall,
    remote: RemoteArgument = None,
    specs: Annotated[
        list[str] | None,
        Argument(metavar="NAME|PATH@REF", help="Branches and tags; else all."),
    ] = None,
    named: NamedOption = None,
    prune: Annotated[bool, Option("--prune", help="Forget branches that are gone there.")] = False,
    no_tags: Annotated[bool, Option("--no-tags", help="Leave tags that are not named.")] = False,
    everything: Annotated[
        bool, Option("--all", help="Bring all data that a lazy clone left there.")
    ] = False,
    depth: DepthOption = None,
    unshallow: Annotated[
        bool, Option("--unshallow", help="Bring all of the history that ends here.")
    ] = False,
    limit_rate: LimitRate = None,
) -> None:
    """Bring commits of another repository here; its branches are then called REMOTE/BRANCH.

    No branch of yours moves, unless NAME:BRANCH says so. PATH@REF brings one dataset or model
    without its history, and commits it to the branch that you are on. A mirror follows its origin.
    Where history ends here, --depth and --unshallow take its end further back.

    Examples:
        tensorrepo fetch
        tensorrepo fetch origin cleaning
        tensorrepo fetch s3://bucket/team models/net@v1 --as base
        tensorrepo fetch --all
        tensorrepo fetch --unshallow
    """
    at = here(call)
    promoted = [split for spec in specs or () if (split := split_at(spec))]
    if promoted:
        _fetch_promoted(call, at, remote, promoted, named, limit_rate)
        return
    if named is not None:
        raise InvalidInputError("--as names what PATH@REF brings: give that")
    with _moving(call, f"fetching {remote or at.remotes.default()}", limit_rate) as options:
        if everything:
            totals = transfer.fetch_data(at, options)
            call.answer(totals_json(totals), totals_line(totals))
            return
        report = transfer.fetch(
            at, remote, options, specs=specs or (), tags=not no_tags, prune=prune,
            depth=depth, unshallow=unshallow,
        )  # fmt: skip
    for tag in report.kept:
        output.warning(f"tag {tag!r} names another commit there; yours stays")
    report_moves(call, report, "Nothing new")


def push_command(
    call: RepoCall,
    remote: RemoteArgument = None,
    specs: Annotated[
        list[str] | None,
        Argument(
            metavar="NAME|PATH@REF",
            help="Branches, tags, SOURCE:TARGET; else this branch.",
            autocompletion=complete_branch,
        ),
    ] = None,
    named: NamedOption = None,
    force: Annotated[
        bool, Option("--force", help="Move a branch there other than forward.")
    ] = False,
    lease: Annotated[
        bool,
        Option("--force-with-lease", help="The same, if it is where you fetched it last."),
    ] = False,
    tags: Annotated[bool, Option("--tags", help="All tags, too.")] = False,
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME there.")] = False,
    limit_rate: LimitRate = None,
) -> None:
    """Bring commits to another repository, and move its branches: all that are named, or none.

    A branch there only moves forward, unless forced; what it leaves stays in its reflog. PATH@REF
    brings one dataset or model without its history, and commits it to main there.

    Examples:
        tensorrepo push
        tensorrepo push origin main v1
        tensorrepo push origin cleaning:review
        tensorrepo push origin --delete review
        tensorrepo push s3://bucket/serving models/net@v1 --as classifier
    """
    at = here(call)
    promoted = [split for spec in specs or () if (split := split_at(spec))]
    if promoted:
        _, url = at.remotes.find(remote)
        target = connect(url, None, call.machine)
        _promote(call, at, target, promoted, named, limit_rate)
        return
    if delete and not specs:
        raise InvalidInputError("--delete needs the NAME to delete")
    meant = [f":{spec}" for spec in specs or ()] if delete else specs or [_branch(call)]
    with _moving(call, f"pushing to {remote or at.remotes.default()}", limit_rate) as options:
        report = transfer.push(at, remote, meant, options, force=force, lease=lease, tags=tags)
    report_moves(call, report, "Everything is there already")


def pull_command(
    call: CommandCall, remote: RemoteArgument = None, limit_rate: LimitRate = None
) -> None:
    """Fetch, and merge the branch of the same name into the one that you are on.

    Examples:
        tensorrepo pull
        tensorrepo pull backup
    """
    at, session = here(call), call.session
    branch = session.branch()
    with session.here.locked():
        refuse_staged(session)
        with _moving(call, f"fetching {remote or at.remotes.default()}", limit_rate) as options:
            report, outcome = transfer.pull(at, remote, branch, options, author=session.author())
    made = outcome.committed
    tip = made.digest if made is not None else outcome.forwarded
    value = {"branch": branch, "commit": tip, "forwarded": outcome.forwarded is not None}
    if made is not None:
        told = f"[{branch} {made.digest:.12}] {made.commit.message.partition(chr(10))[0]}"
    elif outcome.forwarded is not None:
        told = f"Branch {branch} moved forward to {outcome.forwarded:.12}."
    else:
        told = f"Branch {branch} has all of it already."
    lines = [*_move_lines(report.moves), *(f"  {each}" for each in report.besides)]
    call.answer(value | totals_json(report.totals), *lines, told)


def promote_command(
    call: RepoCall,
    what: Annotated[
        str,
        Argument(
            metavar="MODEL@ALIAS|PATH@REF",
            help="A registered model at an alias or version; or an entry of a commit.",
            autocompletion=complete_entry,
        ),
    ],
    url: Annotated[str, Argument(metavar="REMOTE|URL", help="The repository that it goes to.")],
    named: NamedOption = None,
    to_branch: Annotated[
        str, Option("--branch", metavar="NAME", help="Branch there; else main.")
    ] = "main",
    message: Annotated[str | None, Option("-m", "--message", help="Of the commit there.")] = None,
    limit_rate: LimitRate = None,
) -> None:
    """Bring one model or dataset to another repository, without its history.

    The commit there names this repository, the commit and the path here; here `lineage` tells where
    it went. A second promotion moves only what differs.

    Examples:
        tensorrepo promote classifier@production s3://bucket/serving
        tensorrepo promote datasets/photos@v2 serving --as golden
    """
    at = here(call)
    split = split_at(what)
    if split is None:
        raise InvalidInputError(f"{what!r}: expected MODEL@ALIAS or PATH@REF, such as net@v1")
    _, place = at.remotes.find(url)
    target = connect(place, None, call.machine)
    _promote(
        call, at, target, [_registered(at, *split)], named, limit_rate,
        branch=to_branch, message=message,
    )  # fmt: skip


def remote_ls_command(call: RepoCall) -> None:
    """List the other repositories that have a name here.

    Examples:
        tensorrepo remote ls
    """
    known = here(call).remotes.urls()
    if call.as_json:
        output.json_lines({"name": name, "url": url} for name, url in known.items())
    elif known:
        output.table(["name", "url"], known.items())
    else:
        output.note("no remote has a name here: `tensorrepo remote add origin URL` gives it one")


def remote_add_command(
    call: RepoCall,
    name: Annotated[str, Argument(help="Such as origin.")],
    url: Annotated[str, Argument(metavar="URL", help="Where it is, without secrets.")],
) -> None:
    """Give another repository a name, in the settings of this machine.

    Examples:
        tensorrepo remote add origin s3://bucket/team
    """
    kept = here(call).remotes.add(name, url)
    call.answer({"name": name, "url": kept}, f"{name} is {kept}.")


def remote_rm_command(
    call: RepoCall,
    name: Annotated[str, Argument(help="The remote.", autocompletion=_complete_remote)],
) -> None:
    """Forget a remote, and where its branches were.

    Examples:
        tensorrepo remote rm backup
    """
    gone = transfer.remove_remote(here(call), name, somebody(call))
    count = output.counted(len(gone), "branch", "branches")
    call.answer({"name": name, "forgotten": gone}, f"{name} is forgotten, with {count} of it.")


def remote_rename_command(
    call: RepoCall,
    name: Annotated[str, Argument(help="The remote.", autocompletion=_complete_remote)],
    new: Annotated[str, Argument(metavar="NEW", help="Its name to be.")],
) -> None:
    """Give a remote another name.

    Examples:
        tensorrepo remote rename origin team
    """
    transfer.rename_remote(here(call), name, new, somebody(call))
    call.answer({"name": new, "was": name}, f"{name} is called {new} now.")


def here(call: CommandCall) -> Here:
    """The repository that the command works in."""
    session = call.session
    config = session.workspace.config_file if session.workspace is not None else None
    return Here(call.machine, session.repository, config)


def _branch(call: CommandCall) -> str:
    """The branch that the workspace is on; main where there is none."""
    return "main" if call.session.workspace is None else call.session.branch()


def somebody(call: CommandCall) -> str:
    """Who does it, for the log; reading and copying need no name."""
    try:
        return author_of(call.machine)
    except InvalidInputError:
        return "somebody"


def totals_json(totals: TransferTotals) -> dict[str, Any]:
    return {
        "commits": totals.commits,
        "objects": totals.objects,
        "bytes": totals.bytes,
        "present": totals.present,
    }


def totals_line(totals: TransferTotals) -> str:
    """What came, for people."""
    commits = output.counted(totals.commits, "commit")
    objects = output.counted(totals.objects, "object")
    there = f"; {totals.present:,} were there already" if totals.present else ""
    return f"{commits}, {objects}, {output.bytes_text(totals.bytes)}{there}."


def report_moves(call: CommandCall, report: TransferReport, nothing: str) -> None:
    """Tell which refs a transfer set."""
    moves = [
        {"ref": move.ref, "old": move.old, "new": move.new, "forced": move.forced}
        for move in report.moves
    ]
    value = {"url": report.url, "moved": moves, "purged": report.purged}
    value["kept_purged"] = report.kept_purged
    value |= totals_json(report.totals)
    if report.records:
        value["records"] = report.records
    lines = [*_move_lines(report.moves), *(f"  {told}" for told in report.besides)]
    came = lines or report.totals.commits
    told = [f"{report.url}:", *lines, totals_line(report.totals)] if came else [f"{nothing}."]
    call.answer(value, *told)


def _move_lines(moves: Sequence[MovedRef]) -> list[str]:
    return [f"  {_move_text(move)}" for move in moves]


def _move_text(move: MovedRef) -> str:
    name = move.ref
    for space in (BRANCHES, REMOTES):
        name = name.removeprefix(space)
    spaces = {TAGS: "tag", BRANCHES: "branch", REMOTES: "branch"}
    kind = next((spaces[space] for space in spaces if move.ref.startswith(space)), "ref")
    if move.new is None:
        return f"{name}: deleted (was {move.old:.12})"
    if move.old is None:
        return f"{name.removeprefix(TAGS)}: new {kind} at {move.new:.12}"
    return f"{name}: {move.old:.12}..{move.new:.12}{' (forced)' if move.forced else ''}"


@contextmanager
def _moving(
    call: CommandCall, what: str, limit_rate: str | None, actor: str | None = None
) -> Iterator[TransferOptions]:
    """Options of a transfer whose progress is shown: bytes, rate, and time left."""
    named = actor or somebody(call)
    with output.progress(what) as advance:

        def progress(totals: TransferTotals) -> None:
            advance(totals.bytes, totals.known_bytes)

        options = transfer.transfer_options(
            call.machine, named, limit_rate=limit_rate, progress=progress
        )
        try:
            yield options
        except KeyboardInterrupt:
            output.note("what came is kept: the same command goes on from there")
            raise


def _fetch_promoted(
    call: CommandCall,
    at: Here,
    remote: str | None,
    promoted: Sequence[tuple[str, str]],
    named: str | None,
    limit_rate: str | None,
) -> None:
    _, url = at.remotes.find(remote)
    source = Here(call.machine, connect(url, None, call.machine))
    branch = _branch(call)
    _promote(call, source, at.core, promoted, named, limit_rate, branch=branch)


def _promote(
    call: CommandCall,
    source: Here,
    target: Any,
    promoted: Sequence[tuple[str, str]],
    named: str | None,
    limit_rate: str | None,
    **more: Any,
) -> None:
    if named is not None and len(promoted) > 1:
        raise InvalidInputError("--as names one entry: promote them one by one")
    author = call.session.author()
    for path, ref in promoted:
        with _moving(call, f"promoting {path}", limit_rate, author) as options:
            made = transfer.promote(
                source.core, target, path, ref, options, named=named, warn=output.warning, **more
            )
        _report_promotion(call, made, target.url)


def _report_promotion(call: CommandCall, made: Promotion, url: str) -> None:
    commit = None if made.landed is None else made.landed.digest
    value = {
        "path": made.path,
        "url": url,
        "commit": commit,
        "origin": {
            "repository": made.origin.repository,
            "commit": made.origin.commit,
            "path": made.origin.path,
        },
    }
    told = f"in commit {commit:.12}" if commit else "there already"
    call.answer(
        value | totals_json(made.totals),
        f"{made.origin.path} of {made.origin.commit:.12} is {made.path} at {url}, {told}.",
        totals_line(made.totals),
    )


def _registered(at: Here, name: str, ref: str) -> tuple[str, str]:
    """Path and commit of a registered name's alias or version; else what was typed."""
    plain = name.removeprefix("models/")
    if plain not in registered(at.core.log.refresh()):
        return name, ref
    version = find_version(at.core, plain, int(ref) if ref.isdecimal() else ref)
    return version.source_path, version.source
