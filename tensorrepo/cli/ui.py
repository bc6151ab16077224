"""The pages of one repository, for oneself: the command `ui`."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

from typer import Option

from tensorrepo.api import server
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.app import create_app
from tensorrepo.api.routes.login import code_url
from tensorrepo.api.service import Service, open_service
from tensorrepo.api.settings import default_data_folder, make_settings
from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.session import WorkspaceSession

LOOPBACK: Final = "127.0.0.1"
_UNNAMED: Final = "repository"
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


def ui_command(
    call: RepoCall,
    write: Annotated[
        bool, Option("--write", help="Let the pages change the repository, as you.")
    ] = False,
    port: Annotated[int | None, Option("--port", metavar="N", help="Listen on this port.")] = None,
    no_browser: Annotated[
        bool, Option("--no-browser", help="Show the address instead of opening it.")
    ] = False,
) -> None:
    """Look at the repository in the browser, until Ctrl-C.

    Only this machine is answered, and only the browser that has the address, which is good once.
    Nothing can be changed unless you say so.

    Examples:
        tensorrepo ui
        tensorrepo ui --repo s3://bucket/photos --write
    """
    session = call.session
    url = session.repository.url
    with TemporaryDirectory(prefix="tensorrepo-ui-") as folder:
        root = None if session.workspace is None else session.workspace.root
        name = repository_name(url, root)
        settings = make_settings(
            host=LOOPBACK,
            port=port or 0,
            # Caches last; who is signed in does not.
            data=default_data_folder(call.machine.environment).with_name("ui"),
            database=f"sqlite:///{folder}/ui.db",
            repositories={name: url},
        )
        service = open_service(settings, call.machine.environment)
        try:
            user = add_reader(
                service, author_of(session), name, Action.WRITE if write else Action.READ
            )
            code = service.sign_in.make_code(user)

            def announce(address: str) -> None:
                to = code_url(address, code, f"/{name}")
                call.answer({"url": to}, f"The pages of {url} are at", to, "Ctrl-C ends them.")
                output.flush()  # whoever reads a pipe waits for it
                if not no_browser:
                    webbrowser.open(to)

            server.run(create_app(service=service), settings, announce)
        finally:
            service.close()


def author_of(session: WorkspaceSession) -> str:
    """Who is working; where nobody has said so, whoever looks."""
    try:
        return session.author()
    except InvalidInputError:
        return ""


def add_reader(service: Service, author: str, repository: str, action: Action) -> str:
    """A user who may look at one repository, or write; they commit as `author` does."""
    called, _, address = author.removesuffix(">").rpartition(" <")
    name = _NOT_IN_NAMES.sub("-", called.lower()).strip("-")[:63].strip("-") or "you"
    service.people.add_user(name, email=address)
    service.accounts.grant(name, Grant(repository, action))
    return name


def repository_name(url: str, workspace: Path | None) -> str:
    """What pages call the repository: as its folder, or as the end of its URL."""
    end = workspace.name if workspace is not None else url.rstrip("/").rpartition("/")[2]
    name = _NOT_IN_NAMES.sub("-", end.lower()).strip("-")[:99].strip("-")
    return name or _UNNAMED
