"""Commands that store models: `model add`, `slice`, `construct`, `merge`, `repack`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo.catalog.catalog import read_architecture
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import (
    CommandCall,
    FormatOption,
    RepoCall,
    StoredModelArgument,
    complete_entry,
    complete_place,
    model_path,
    stored_model,
)
from tensorrepo.formats.model.maintenance.repack import (
    ALPHA,
    DEPTH,
    RepackOptions,
    RepackReport,
    repack_models,
)
from tensorrepo.formats.model.merging.new_model import (
    RULES,
    NewModel,
    construct_model,
    merge_models,
    remake,
    slice_model,
)
from tensorrepo.formats.model.merging.recipe import ADAPTER, METHODS, make_recipe
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectSink
from tensorrepo.workspace.add import add
from tensorrepo.workspace.add_request import AddMode, AddRequest
from tensorrepo.workspace.change import (
    StagedModel,
    adapter_base,
    find_model,
    make_model,
    named_in,
    recipe_named,
)

AsOption = Annotated[str, Option("--as", metavar="NAME", help="Of the new model.")]
ReplaceOption = Annotated[bool, Option("--replace", help="NAME may be taken.")]


def model_add_command(
    call: CommandCall,
    path: Annotated[str, Argument(metavar="PATH", help="A file or folder.")],
    name: Annotated[
        str, Argument(metavar="NAME", help="Of the model.", autocompletion=complete_entry)
    ],
    replace: ReplaceOption = False,
    format_name: FormatOption = None,
    adapter_of: Annotated[
        str | None, stored_model("--adapter-of", "It is an adapter (LoRA, IA3) to that model.")
    ] = None,
    adapter_scale: Annotated[
        float | None,
        Option("--adapter-scale", help="Its alpha / rank, where no config of it says so."),
    ] = None,
) -> None:
    """Read a model from a file or folder, and stage it: the same as `add PATH --model NAME`.

    An adapter is kept with what it changes of its base: `model desc` shows rank, scale and targets,
    and `model merge --adapter NAME` makes the adapted model.

    Examples:
        tensorrepo model add model.safetensors classifier
        tensorrepo model add snapshot/ bert --replace
        tensorrepo model add epoch3.pt classifier --replace --format torch
        tensorrepo model add lora-math/ math --adapter-of llm
    """
    session = call.session
    mode = AddMode.REPLACE if replace else AddMode.NEW
    request = AddRequest(
        call.path(path),
        "models",
        name.removeprefix("models/"),
        mode,
        format_name,
        adapter_of=adapter_of,
        adapter_scale=adapter_scale,
    )
    with session.here.locked(), output.progress(f"adding {request.path}", None) as advance:
        (added,) = add(session, request, advance)
    for note in added.notes:
        output.note(f"note: {note}")
    size = output.bytes_text(added.bytes)
    line = f"staged {added.path} ({size} read)" if added.changed else f"{added.path} is unchanged"
    call.answer(asdict(added), line)


def model_slice_command(
    call: CommandCall,
    name: StoredModelArgument,
    first: Annotated[str, Option("--first", metavar="NODE", help="Where it begins.")],
    last: Annotated[str, Option("--last", metavar="NODE", help="Where it ends, included.")],
    new: AsOption,
    replace: ReplaceOption = False,
) -> None:
    """Stage the sub-network between two nodes of a model as a model of its own.

    NODE is a node of the graph (`model desc NAME --nodes` lists them) or a module of the model:
    all nodes in it. Tensors are shared with the model, nothing is stored twice.

    Examples:
        tensorrepo model slice resnet --first layer1 --last layer3 --as backbone
        tensorrepo model slice v1:bert --first encoder.layer.0 --last encoder.layer.5 --as half
    """
    source = find_model(call.session, name)
    what = f"slice of {source.path}"
    make = partial(slice_model, source=source, first=first, last=last)
    stage_made(call, new, make, what, replace=replace)


def model_merge_command(
    call: CommandCall,
    names: Annotated[
        list[str], Argument(metavar="[REF:]NAME...", help="Models.", autocompletion=complete_place)
    ],
    method: Annotated[str, Option("--method", help=f"One of {', '.join(METHODS)}.")] = "average",
    new: Annotated[str | None, Option("--as", metavar="NAME", help="Of the new model.")] = None,
    base: Annotated[
        str | None,
        stored_model(
            "--base", "What they were tuned from; for ties, task-arithmetic and adapters."
        ),
    ] = None,
    weights: Annotated[
        str | None, Option("--weights", metavar="W,W", help="One for each model.")
    ] = None,
    density: Annotated[
        float, Option("--density", help="Of ties: the share of changes that is kept.")
    ] = 0.2,
    scale: Annotated[
        float, Option("--scale", help="Of ties and task-arithmetic: of the joint change.")
    ] = 1.0,
    lenient: Annotated[
        bool, Option("--lenient", help="Tensors that do not fit are the first model's.")
    ] = False,
    adapter: Annotated[bool, Option("--adapter", help="Put adapters into their base.")] = False,
    again: Annotated[
        bool, Option("--remake", help="Make a merged model again, and compare it.")
    ] = False,
    replace: ReplaceOption = False,
) -> None:
    """Blend the weights of models of one architecture, and stage what comes of it.

    average: the weighted mean. slerp: of two, a place on the arc between them (--weights 0.7,0.3).
    task-arithmetic: the base plus what each changed. ties: likewise, of the largest changes and
    where their signs agree. --adapter: the base of adapters with these put into it. How it was
    made is kept with the model: --remake makes it again and compares every tensor. For branches see
    `tensorrepo merge`.

    Examples:
        tensorrepo model merge run1 run2 run3 --as soup
        tensorrepo model merge a b --method slerp --weights 0.7,0.3 --as mix
        tensorrepo model merge math code --method ties --base v1:llm --density 0.3 --as both
        tensorrepo model merge --adapter lora-math --as math
        tensorrepo model merge --remake soup
    """
    session = call.session
    if again:
        if len(names) != 1 or new is not None:
            raise InvalidInputError("--remake takes one model, and makes no new one")
        _remake(call, names[0])
        return
    if new is None:
        raise InvalidInputError("say what the new model is called: --as NAME")
    parents = [find_model(session, name) for name in names]
    under = None if base is None else find_model(session, base)
    if adapter:
        method, under = ADAPTER, under or adapter_base(session, parents[0])
    recipe = make_recipe(
        method,
        tuple(one.digest for one in parents),
        base=None if under is None else under.digest,
        weights=None if weights is None else _numbers(weights),
        density=density,
        scale=scale,
        strict=not lenient,
    )
    total = (under if under is not None and adapter else parents[0]).model.size_bytes
    with output.progress(f"merging into {new}", total) as advance:

        def make(objects: ObjectSink) -> NewModel:
            return merge_models(
                objects, recipe, parents, under, progress=lambda _, done: advance(done)
            )

        what = f"{method} of {', '.join(one.path for one in parents)}"
        stage_made(call, new, make, what, replace=replace)


def _remake(call: CommandCall, name: str) -> None:
    session = call.session
    source = find_model(session, name)
    recipe = recipe_named(source)
    with output.working(f"making {name} again"):
        odd = remake(source.model, recipe, *named_in(session, recipe, source))
    if odd:
        listed = ", ".join(odd[:5]) + (", ..." if len(odd) > 5 else "")
        raise CorruptError(
            f"{source.path}: stored otherwise than it comes out: "
            f"{output.counted(len(odd), 'tensor')}: {listed}"
        )
    value = {"path": source.path, "tensors": len(source.model.tensors), "equal": True}
    call.answer(value, f"{source.path}: made again by {recipe.method}, all tensors are equal")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInputError(f"--weights {text!r}: expected numbers with commas") from error


def stage_made(
    call: CommandCall,
    name: str,
    make: Callable[[ObjectSink], NewModel],
    what: str,
    *,
    replace: bool,
) -> None:
    """Make a model, stage it, and say so."""
    session = call.session
    with session.here.locked():
        staged: StagedModel = make_model(session, name, make, what, replace=replace)
    for note in staged.notes:
        output.note(f"note: {note}")
    size = output.bytes_text(staged.bytes)
    line = f"staged {staged.path} ({output.counted(staged.tensors, 'tensor')}, {size})"
    text = line if staged.changed else f"{staged.path} is that already"
    call.answer(asdict(staged), text)


def model_construct_command(
    call: CommandCall,
    new: AsOption,
    target: Annotated[
        str | None, Argument(metavar="[PATH]", help="JSON: types and shapes, or a graph.")
    ] = None,
    like: Annotated[str | None, stored_model("--like", "The architecture of this model.")] = None,
    donors: Annotated[
        list[str] | None,
        stored_model("--from", "Take tensors from this model; may be repeated."),
    ] = None,
    rule: Annotated[
        str | None, Option("--init", help=f"For what nobody has: {', '.join(RULES)}; else refuse.")
    ] = None,
    seed: Annotated[int, Option("--seed", help="Of rules that draw numbers.")] = 0,
    replace: ReplaceOption = False,
) -> None:
    """Stage a model of a new architecture that shares all tensors with others that fit.

    The architecture is a JSON file, as `model desc NAME --nodes --json` prints one, or types and
    shapes by name; or --like a model. Tensors come from the first model given with --from that has
    one of that name, type and shape, else at that place of the common prefix of both graphs.

    Examples:
        tensorrepo model construct wider.json --from bert --init default --as wider
        tensorrepo model construct --like v2:net --from v1:net --init zeros --as net2
        tensorrepo model construct net.json --as net3 --init zeros
    """
    session = call.session
    if (target is None) == (like is None):
        raise InvalidInputError("give the architecture: a JSON file, or --like a model")
    wanted: Any = (
        find_model(session, like).model
        if like is not None
        else read_architecture(call.path(target or ""))
    )
    sources = [find_model(session, name) for name in donors or ()]
    make = partial(construct_model, target=wanted, donors=sources, rule=rule, seed=seed)
    what = f"built of {', '.join(one.path for one in sources) or rule}"
    with output.working(f"building {new}"):
        stage_made(call, new, make, what, replace=replace)


def model_repack_command(
    call: RepoCall,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="[PATH...]", help="These alone.", autocompletion=complete_entry),
    ] = None,
    alpha: Annotated[
        float, Option("--alpha", help="What a read may cost, of what a whole one costs.")
    ] = ALPHA,
    depth: Annotated[
        int, Option("--depth", help="How many bases a read may pass through.")
    ] = DEPTH,
    dry_run: Annotated[bool, Option("--dry-run", help="Measure and tell; store nothing.")] = False,
) -> None:
    """Store models anew in the fewest bytes such that reads stay quick; commits do not change.

    Models of all commits that a ref leads to are looked at. The old packs stay where they are, and
    become reclaimable where nothing else reaches them.

    Examples:
        tensorrepo model repack --dry-run
        tensorrepo model repack
        tensorrepo model repack net --alpha 3 --depth 4
    """
    session = call.session
    wishes = RepackOptions(
        session.author(),
        time.time_ns(),
        alpha=alpha,
        depth=depth,
        paths=tuple(map(model_path, paths or ())),
        dry_run=dry_run,
    )
    with ExitStack() as bars:
        # Time that this thread works: what runs beside it on the machine changes no plan.
        done = repack_models(session.repository, wishes, time.thread_time, _bar_each(bars))
    figures = output.fields(
        "models", "tensors", "present_bytes", "planned_bytes", "stored_bytes", "superseded",
        "reclaimable", "reclaimable_bytes",
    )  # fmt: skip
    call.answer(figures(done) | {"dry_run": dry_run}, *_repack_lines(done, dry_run=dry_run))
    if not done.changed and not dry_run:
        raise Exit(NOTHING_TO_DO)


def _bar_each(bars: ExitStack) -> Callable[[str, int, int], None]:
    shown: dict[str, Callable[[int], None]] = {}

    def advance(what: str, done: int, size: int) -> None:
        if what not in shown:
            bars.close()
            shown[what] = bars.enter_context(output.progress(f"{what} tensors", size))
        shown[what](done)

    return advance


def _repack_lines(done: RepackReport, *, dry_run: bool) -> Iterator[str]:
    looked = f"{output.counted(done.models, 'model')}, {output.counted(done.tensors, 'tensor')}"
    present, planned = (output.bytes_text(one) for one in (done.present_bytes, done.planned_bytes))
    if dry_run:
        yield f"{looked}: {present} that nothing else reaches could be about {planned}"
    elif not done.changed:
        yield f"{looked}: nothing to save; new packs would take no less than {present}"
    else:
        yield f"{looked}: {output.bytes_text(done.stored_bytes)} in place of {present}"
        freed = output.bytes_text(done.reclaimable_bytes)
        packs = output.counted(len(done.reclaimable), "pack")
        yield f"{freed} in {packs} are reached by nothing any more"
