"""Model registry: named models, their versions and aliases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.catalog.registry import AliasMove, RegisteredVersion, Registry
from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall, complete_place, complete_registered, model_path, pair
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.models.model import model_at
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.errors import ConflictError, InvalidInputError

ModelArgument = Annotated[
    str,
    Argument(
        metavar="MODEL", help="Name of a registered model.", autocompletion=complete_registered
    ),
]
AliasArgument = Annotated[str, Argument(metavar="ALIAS", help="Such as champion.")]
LabelOption = Annotated[
    list[str] | None, Option("--label", metavar="NAME=TEXT", help="Set a label; NAME= removes it.")
]


def registry_ls_command(call: RepoCall) -> None:
    """List the registered models.

    Examples:
        tensorrepo registry ls
    """
    columns = {
        "MODEL": "name",
        ">VERSIONS": lambda model: len(model.versions),
        ">LATEST": lambda model: model.latest or "-",
        "ALIASES": lambda model: ", ".join(f"{name}={at}" for name, at in model.aliases.items()),
        "DESCRIPTION": lambda model: model.description.partition("\n")[0][:60],
    }
    empty = "no model is registered: `tensorrepo registry register` makes a version of one"
    call.show(handle_of(call).registry.models(), columns, document=_MODEL, empty=empty)


def registry_show_command(
    call: RepoCall,
    model: ModelArgument,
    version: Annotated[
        str | None, Argument(metavar="[VERSION]", help="A number, or an alias.")
    ] = None,
) -> None:
    """Show a registered model and its versions, or one version of it.

    Examples:
        tensorrepo registry show classifier
        tensorrepo registry show classifier champion
    """
    registry = handle_of(call).registry
    entry = registry.get(model)
    versions = [] if version is None else [registry.version(model, version)]
    versions = versions or (registry.versions(model) if entry.versions else [])
    if call.as_json:
        documents = [_version_document(registry, each) for each in versions]
        output.json_value(_MODEL(entry) | {"versions": documents})
        return
    output.line(f"{entry.name}{': ' + entry.description if entry.description else ''}")
    output.lines(f"  {name}: {text}" for name, text in entry.labels.items())
    if entry.protected:
        output.line(f"  protected: {', '.join(entry.protected)}")
    columns = {
        ">VERSION": "number",
        "ALIASES": lambda each: ", ".join(each.aliases),
        "REGISTERED": _time,
        "BY": "author",
        "FROM": lambda each: f"{each.source:.12}:{each.source_path}",
    }
    output.show(versions, columns)


def registry_create_command(
    call: RepoCall,
    model: ModelArgument,
    description: Annotated[str, Option("--description", help="What it is.")] = "",
    label: LabelOption = None,
) -> None:
    """Name a model and say what it is, before its first version.

    Examples:
        tensorrepo registry create classifier --description "Reads digits." --label task=vision
    """
    made = handle_of(call).registry.create(model, description=description, labels=_labels(label))
    call.answer(_MODEL(made), f"{model} is registered, without a version.")


def registry_register_command(
    call: RepoCall,
    source: Annotated[
        str,
        Argument(metavar="[REF:]NAME", help="A model of a commit.", autocompletion=complete_place),
    ],
    model: Annotated[
        str | None, Option("--as", metavar="MODEL", help="Its name in the registry; else NAME.")
    ] = None,
    alias: Annotated[
        str | None, Option("--alias", help="Name the new version so, in the same step.")
    ] = None,
    message: Annotated[str, Option("-m", "--message", help="About this version.")] = "",
) -> None:
    """Make a model of a commit the next version of a registered model.

    Examples:
        tensorrepo registry register classifier
        tensorrepo registry register v2:models/net --as classifier --alias challenger
    """
    ref, named = split_path(source)
    place = model_path(ref) if named is None else f"{ref}:{model_path(named)}"
    revision, path, _ = call.session.find(place)
    registry = handle_of(call).registry
    name = model or path.removeprefix("models/")
    stored = model_at(registry.context, path, revision.digest)
    made = registry.register(name, stored, message=message, alias=alias)
    also = f", which {alias} names now" if alias else ""
    text = f"{path} of {revision.digest:.12} is version {made.number} of {name}{also}."
    call.answer(_version_document(registry, made), text)


def registry_alias_command(
    call: RepoCall,
    model: ModelArgument,
    alias: AliasArgument,
    version: Annotated[
        str | None,
        Argument(metavar="[VERSION]", help="The version to name: a number, or an alias."),
    ] = None,
    delete: Annotated[bool, Option("-d", "--delete", help="Remove the alias.")] = False,
) -> None:
    """Let an alias name a version, move it, or remove it; without VERSION: tell what it names.

    Examples:
        tensorrepo registry alias classifier champion 3
        tensorrepo registry alias classifier champion
        tensorrepo registry alias classifier champion -d
    """
    if delete and version is not None:
        raise InvalidInputError("give `registry alias MODEL ALIAS VERSION`, or -d without VERSION")
    registry = handle_of(call).registry
    if delete:
        registry.delete_alias(model, alias)
        call.answer({"model": model, "deleted": alias}, f"Removed alias {alias} of {model}.")
        return
    if version is None:
        number = registry.version(model, alias).number
    else:
        number = registry.alias(model, alias, version)
    named = {"model": model, "alias": alias, "version": number}
    call.answer(named, f"{alias} of {model} is version {number}.")


def registry_history_command(call: RepoCall, model: ModelArgument, alias: AliasArgument) -> None:
    """Show where an alias was, and who moved it: the newest first.

    Examples:
        tensorrepo registry history classifier champion
    """
    moves = handle_of(call).registry.history(model, alias)
    columns = {"TIME": _time, ">VERSION": lambda move: move.version or "none", "BY": "actor"}
    document = output.fields("by=actor", "version", "record=generation")
    call.show(moves, columns, document=lambda move: {"time": _time(move)} | document(move))


def registry_protect_command(
    call: RepoCall,
    model: ModelArgument,
    alias: AliasArgument,
    off: Annotated[bool, Option("--off", help="Allow it to move again.")] = False,
) -> None:
    """Refuse to move or remove an alias, for everybody, until --off.

    Examples:
        tensorrepo registry protect classifier champion
        tensorrepo registry protect classifier champion --off
    """
    handle_of(call).registry.protect(model, alias, on=not off)
    value = {"model": model, "alias": alias, "protected": not off}
    state = "may move again" if off else "is now protected"
    call.answer(value, f"Alias {alias} of {model} {state}.")


def registry_describe_command(
    call: RepoCall,
    model: ModelArgument,
    version: Annotated[
        str | None, Argument(metavar="[VERSION]", help="Describe this version.")
    ] = None,
    description: Annotated[str | None, Option("--description", help="What it is.")] = None,
    label: LabelOption = None,
) -> None:
    """Say what a model, or one of its versions, is.

    Examples:
        tensorrepo registry describe classifier --description "Reads digits." --label task=vision
        tensorrepo registry describe classifier 3 --label evaluated=2026-11
    """
    if description is None and not label:
        raise InvalidInputError("give --description TEXT or --label NAME=TEXT")
    registry = handle_of(call).registry
    described = registry.describe(model, version, description=description, labels=_labels(label))
    what = model if version is None else f"version {version} of {model}"
    call.answer(_MODEL(described), f"Described {what}.")


def registry_rm_command(
    call: RepoCall,
    model: ModelArgument,
    version: Annotated[
        str | None, Argument(metavar="[VERSION]", help="This version; else all of them.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Needed to remove all of them.")] = False,
) -> None:
    """Remove a version, or a model with all its versions and aliases. Numbers are not given again.

    Examples:
        tensorrepo registry rm classifier 2
        tensorrepo registry rm classifier --force
    """
    registry = handle_of(call).registry
    if version is not None:
        registry.delete_version(model, version)
        call.answer({"model": model, "deleted": version}, f"Removed version {version} of {model}.")
        return
    if not force:
        raise ConflictError(f"others may rely on {model!r}: repeat with --force to remove it")
    count = registry.delete(model)
    text = f"Removed {model}, which had {count} version{'' if count == 1 else 's'}."
    call.answer({"model": model, "deleted_versions": count}, text)


def _labels(texts: list[str] | None) -> dict[str, str | None]:
    """``NAME=TEXT`` each; an empty text removes the label."""
    pairs = [pair(text, "--label", "NAME=TEXT") for text in texts or ()]
    return {name: text or None for name, text in pairs}


def _time(event: RegisteredVersion | AliasMove) -> str:
    return datetime.fromtimestamp(event.time_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


_MODEL = output.fields("model=name", "description", "labels", "versions", "aliases", "protected")
_VERSION = output.fields(
    "model=name", "version=number", "commit", "ref", "source", "source_path", "author"
)


def _version_document(registry: Registry, version: RegisteredVersion) -> dict[str, Any]:
    words = registry.words(version.name, version.number)
    return _VERSION(version) | {
        "time": _time(version),
        "aliases": version.aliases,
        "description": words.description,
        "labels": dict(words.labels),
    }
