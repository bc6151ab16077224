"""`init` and `config`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, started_in
from tensorrepo.connect import CONFIG_KEYS, parse_prefixes, parse_size, read_config, write_config
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.workspace import find_workspace
from tensorrepo.workspace.start import start_workspace


def init_command(
    context: Context,
    url: Annotated[
        str | None, Argument(metavar="URL", help="Where the repository is to lie.")
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Make a workspace inside of another one, or anew.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a repository at URL and a workspace here, on branch main.

    Without URL the repository lies in .tensorrepo/store. Where there is a repository at URL
    already, only the workspace is made: that is how a second person joins.

    Examples:
        tensorrepo init
        tensorrepo init s3://bucket/team
        tensorrepo init /mnt/data/repository
    """
    made = start_workspace(started_in(context), url, force=force)
    url, root = made.repository.url, str(made.workspace.root)
    output.answer(
        {"url": url, "workspace": root, "created": made.created, "branch": "main"},
        f"{'Made a' if made.created else 'Joined the'} repository at {url}",
        f"Workspace {root} is on branch main.",
        as_json=as_json,
    )


def config_command(
    context: Context,
    key: Annotated[str | None, Argument(help="Such as user.name.")] = None,
    value: Annotated[str | None, Argument(help="What to set it to.")] = None,
    local: Annotated[
        bool, Option("--local", help="Of this workspace alone, not of your user.")
    ] = False,
    unset: Annotated[bool, Option("--unset", help="Forget the setting.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show or set your name, address and other settings.

    Without a value the setting is printed, without a key all of them.

    Examples:
        tensorrepo config user.name "Ada Lovelace"
        tensorrepo config user.email ada@example.org
        tensorrepo config --local cache.limit 50GB
    """
    here = started_in(context)
    file = here.config_file
    if local:
        workspace = find_workspace(here.cwd)
        if workspace is None:
            raise NotFoundError("--local needs a workspace: run `tensorrepo init` first")
        file = workspace.folder / "config.json"
    settings = read_config(file)
    if key is None:
        output.json_value(settings) if as_json else _show(settings)
        return
    if key not in CONFIG_KEYS:
        keys = "; ".join(f"{name} ({what})" for name, what in CONFIG_KEYS.items())
        raise InvalidInputError(f"no setting {key!r}. There are: {keys}")
    if unset:
        write_config(file, {name: held for name, held in settings.items() if name != key})
    elif value is not None:
        if key == "cache.limit":
            parse_size(value)  # refuses what is no size
        if key == "outside.allow":
            if local:
                raise InvalidInputError("outside.allow is a setting of yours: leave out --local")
            parse_prefixes(value)  # refuses what is no place
        write_config(file, {**settings, key: value})
    elif key in settings:
        output.json_value(settings[key]) if as_json else output.line(settings[key])
    else:
        raise Exit(1)


def _show(settings: dict[str, str]) -> None:
    for key, value in sorted(settings.items()):
        output.line(f"{key} = {value}")
