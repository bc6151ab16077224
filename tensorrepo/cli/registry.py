"""`registry`: models by name, their versions, and aliases that name one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place, complete_registered
from tensorrepo.cli.handle import handle_of
from tensorrepo.model import model_at
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.revisions import split_path

if TYPE_CHECKING:
    from tensorrepo.registry import RegisteredModel, RegisteredVersion, Registry

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Name of a registered model.", autocompletion=complete_registered
    ),
]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="A number, or an alias.")]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=TEXT", help="Set a label; NAME= removes it."),
]


def registry_ls_command(
    context: typer.Context, repo: RepoOption = None, as_json: JsonOption = False
) -> None:
    """List the registered models.

    Examples:
        tensorrepo registry ls
    """
    models = _registry(context, repo).models()
    if as_json:
        output.json_value([_json(model) for model in models])
    elif models:
        output.table(
            ("MODEL", ">VERSIONS", ">LATEST", "ALIASES", "DESCRIPTION"),
            [
                (
                    model.name,
                    len(model.versions),
                    model.latest or "-",
                    _aliases(model),
                    model.description.partition("\n")[0][:60],
                )
                for model in models
            ],
        )
    else:
        output.note("no model is registered: `tensorrepo registry register` makes a version of one")


def registry_show_command(
    context: typer.Context,
    model: ModelArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="A number, or an alias.")
    ] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a registered model and its versions, or one version of it.

    Examples:
        tensorrepo registry show classifier
        tensorrepo registry show classifier champion
    """
    registry = _registry(context, repo)
    found = registry.get(model)
    chosen = [] if version is None else [registry.version(model, version)]
    chosen = chosen or (registry.versions(model) if found.versions else [])
    told = _json(found) | {"versions": [_version_json(registry, one) for one in chosen]}
    if as_json:
        output.json_value(told)
        return
    output.line(f"{found.name}{': ' + found.description if found.description else ''}")
    for name, text in found.labels.items():
        output.line(f"  {name}: {text}")
    if found.protected:
        output.line(f"  protected: {', '.join(found.protected)}")
    output.table(
        (">VERSION", "ALIASES", "REGISTERED", "BY", "FROM"),
        [
            (one.number, ", ".join(one.aliases), _time(one.time_ns), one.author, _origin(one))
            for one in chosen
        ],
    )


def registry_create_command(
    context: typer.Context,
    model: ModelArgument,
    description: Annotated[str, typer.Option("-d", "--description", help="What it is.")] = "",
    label: LabelOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name a model and say what it is, before its first version.

    Examples:
        tensorrepo registry create classifier -d "Reads digits." --label task=vision
    """
    made = _registry(context, repo).create(model, description=description, labels=_labels(label))
    output.answer(_json(made), f"{model} is registered, without a version.", as_json=as_json)


def registry_register_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[REF:]NAME", help="A model of a commit.", autocompletion=complete_place
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("--as", metavar="MODEL", help="Its name in the registry; else NAME."),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("--alias", help="Name the new version so, in the same step.")
    ] = None,
    message: Annotated[str, typer.Option("-m", "--message", help="About this version.")] = "",
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a model of a commit the next version of a registered model.

    Examples:
        tensorrepo registry register classifier
        tensorrepo registry register v2:models/net --as classifier --alias challenger
    """
    session = session_of(context, repo)
    revision, path, _ = session.find(_model_place(source))
    registry = _registry(context, repo)
    name = model or path.removeprefix("models/")
    stored = model_at(registry.context, path, revision.digest)
    made = registry.register(name, stored, message=message, alias=alias)
    named = f", which {alias} names now" if alias else ""
    text = f"{path} of {revision.digest:.12} is version {made.number} of {name}{named}."
    output.answer(_version_json(registry, made), text, as_json=as_json)


def registry_alias_command(
    context: typer.Context,
    model: ModelArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as champion.")],
    version: Annotated[
        str | None,
        typer.Argument(metavar="[VERSION]", help="The version to name: a number, or an alias."),
    ] = None,
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Remove the alias.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let an alias name a version, move it, or remove it; without VERSION: tell what it names.

    Examples:
        tensorrepo registry alias classifier champion 3
        tensorrepo registry alias classifier champion
        tensorrepo registry alias classifier champion -d
    """
    if delete and version is not None:
        raise InvalidInputError("give `registry alias MODEL ALIAS VERSION`, or -d without VERSION")
    registry = _registry(context, repo)
    if delete:
        registry.delete_alias(model, alias)
        told = {"model": model, "deleted": alias}
        output.answer(told, f"{alias} of {model} names nothing now.", as_json=as_json)
        return
    if version is None:
        number = registry.version(model, alias).number
    else:
        number = registry.alias(model, alias, version)
    named = {"model": model, "alias": alias, "version": number}
    output.answer(named, f"{alias} of {model} is version {number}.", as_json=as_json)


def registry_history_command(
    context: typer.Context,
    model: ModelArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as champion.")],
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where an alias was, and who moved it: the newest first.

    Examples:
        tensorrepo registry history classifier champion
    """
    moves = _registry(context, repo).history(model, alias)
    if as_json:
        output.json_value(
            [
                {
                    "time": _time(move.time_ns),
                    "by": move.actor,
                    "version": move.version,
                    "record": move.generation,
                }
                for move in moves
            ]
        )
        return
    output.table(
        ("TIME", ">VERSION", "BY"),
        [(_time(move.time_ns), move.version or "none", move.actor) for move in moves],
    )


def registry_protect_command(
    context: typer.Context,
    model: ModelArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as champion.")],
    off: Annotated[bool, typer.Option("--off", help="Allow it to move again.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse to move or remove an alias, for everybody, until --off.

    Examples:
        tensorrepo registry protect classifier champion
        tensorrepo registry protect classifier champion --off
    """
    _registry(context, repo).protect(model, alias, on=not off)
    told = {"model": model, "alias": alias, "protected": not off}
    text = f"{alias} of {model} {'may move again' if off else 'neither moves nor goes now'}."
    output.answer(told, text, as_json=as_json)


def registry_describe_command(
    context: typer.Context,
    model: ModelArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="Describe this version.")
    ] = None,
    description: Annotated[
        str | None, typer.Option("-d", "--description", help="What it is.")
    ] = None,
    label: LabelOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a model, or one of its versions, is.

    Examples:
        tensorrepo registry describe classifier -d "Reads digits." --label task=vision
        tensorrepo registry describe classifier 3 --label evaluated=2026-11
    """
    if description is None and not label:
        raise InvalidInputError("give --description TEXT or --label NAME=TEXT")
    registry = _registry(context, repo)
    told = registry.describe(model, version, description=description, labels=_labels(label))
    what = model if version is None else f"version {version} of {model}"
    output.answer(_json(told), f"Described {what}.", as_json=as_json)


def registry_rm_command(
    context: typer.Context,
    model: ModelArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="This version; else all of them.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Needed to remove all of them.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a version, or a model with all its versions and aliases. Numbers are not given again.

    Examples:
        tensorrepo registry rm classifier 2
        tensorrepo registry rm classifier --force
    """
    registry = _registry(context, repo)
    if version is not None:
        registry.delete_version(model, version)
        told = {"model": model, "deleted": version}
        output.answer(told, f"Removed version {version} of {model}.", as_json=as_json)
        return
    if not force:
        raise ConflictError(f"others may rely on {model!r}: repeat with --force to remove it")
    count = registry.delete(model)
    gone = {"model": model, "deleted_versions": count}
    output.answer(
        gone,
        f"Removed {model}, which had {count} version{'' if count == 1 else 's'}.",
        as_json=as_json,
    )


def _registry(context: typer.Context, url: str | None) -> Registry:
    return handle_of(context, url).registry


def _model_place(text: str) -> str:
    ref, path = split_path(text)
    name = text if path is None else path
    full = name if name.startswith("models/") else f"models/{name}"
    return full if path is None else f"{ref}:{full}"


def _labels(given: list[str] | None) -> dict[str, str | None]:
    """``NAME=TEXT`` each; an empty text removes the label."""
    found: dict[str, str | None] = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--label {one!r:.80}: expected NAME=TEXT")
        found[name] = text or None
    return found


def _aliases(model: RegisteredModel) -> str:
    return ", ".join(f"{alias}={number}" for alias, number in model.aliases.items())


def _origin(version: RegisteredVersion) -> str:
    return f"{version.source:.12}:{version.source_path}"


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _json(model: RegisteredModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "description": model.description,
        "labels": dict(model.labels),
        "versions": list(model.versions),
        "aliases": dict(model.aliases),
        "protected": list(model.protected),
    }


def _version_json(registry: Registry, version: RegisteredVersion) -> dict[str, Any]:
    words = registry.words(version.name, version.number)
    return {
        "model": version.name,
        "version": version.number,
        "commit": version.commit,
        "ref": version.ref,
        "source": version.source,
        "source_path": version.source_path,
        "author": version.author,
        "time": _time(version.time_ns),
        "aliases": list(version.aliases),
        "description": words.description,
        "labels": dict(words.labels),
    }
