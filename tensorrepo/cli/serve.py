"""The service: the command `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tensorrepo.api import (
    deferred_models,  # noqa: F401 - before FastAPI is imported: what it says of that
    server,
)
from tensorrepo.api.access.grants import check_repository_name
from tensorrepo.api.app import create_app
from tensorrepo.api.backup import BackupReport, back_up, restore
from tensorrepo.api.observing.logs import configure_logging
from tensorrepo.api.routes.login import code_url
from tensorrepo.api.service import open_service
from tensorrepo.api.settings import make_settings
from tensorrepo.api.workers import run_workers
from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall
from tensorrepo.connect import connect, is_url
from tensorrepo.remotes import whole_url
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.tables import counted


def serve_command(
    call: CommandCall,
    repositories: Annotated[
        list[str] | None,
        Argument(metavar="[NAME=]REPO...", help="Repositories to serve: folders or URLs."),
    ] = None,
    host: Annotated[str | None, Option("--host", help="Listen on this address.")] = None,
    port: Annotated[int | None, Option("--port", metavar="N", help="Listen on this port.")] = None,
    data: Annotated[
        str | None, Option("--data", metavar="DIR", help="Keep accounts and uploads here.")
    ] = None,
    workers: Annotated[
        int | None, Option("--workers", metavar="N", help="Number of processes.")
    ] = None,
    tls_certificate: Annotated[
        str | None, Option("--tls-certificate", metavar="FILE", help="Speak TLS with this.")
    ] = None,
    tls_key: Annotated[
        str | None, Option("--tls-key", metavar="FILE", help="Key of the certificate.")
    ] = None,
    behind_proxy: Annotated[
        bool | None, Option("--behind-proxy", help="A proxy with TLS stands in front.")
    ] = None,
    insecure: Annotated[
        bool | None, Option("--insecure", help="Listen to a network without TLS.")
    ] = None,
    backup: Annotated[
        str | None, Option("--backup", metavar="DIR", help="Write the service there, and end.")
    ] = None,
    restored: Annotated[
        str | None, Option("--restore", metavar="DIR", help="Make a service of a backup, and end.")
    ] = None,
) -> None:
    """Serve repositories to others: REST, clones, pages.

    Begins with an administrator's token, which is shown once. All settings can stand in the
    environment, as TENSORREPO_SERVER_PORT=8080, or in a TOML file that TENSORREPO_SERVER_FILE
    names.

    Examples:
        tensorrepo serve
        tensorrepo serve photos=s3://bucket/photos --port 8080
    """
    given: dict[str, object] = {
        "host": host,
        "port": port,
        "data": None if data is None else call.path(data),
        "workers": workers,
        "tls_certificate": None if tls_certificate is None else call.path(tls_certificate),
        "tls_key": None if tls_key is None else call.path(tls_key),
        "behind_proxy": behind_proxy,
        "insecure": insecure,
    }
    named = dict(_named(call, each) for each in repositories or ())
    chosen = {key: value for key, value in given.items() if value is not None}
    settings = make_settings(**chosen, **({"repositories": named} if named else {}))
    environment = call.machine.environment
    if restored is not None:
        report = restore(settings, call.path(restored), environment)
        call.answer(_counts(report), f"Restored: {_words(report)}")
        return
    server.check_listening(settings)
    configure_logging(settings.log_form)
    service = open_service(settings, environment)
    try:
        if backup is not None:
            report = back_up(service, call.path(backup), environment)
            call.answer(_counts(report), f"Written: {_words(report)}")
            return
        # First: a token that is made where nothing can listen would never be shown.
        server.listening_socket(settings).close()
        token = server.first_token(service.accounts)
        code = server.first_code(service) if token or output.is_terminal() else None
        if settings.workers == 1:
            app = create_app(service=service)
            server.run(app, settings, lambda url: _announce(call, url, token, code))
    finally:
        service.close()
    if settings.workers > 1:
        run_workers(settings, lambda url: _announce(call, url, token, code))


def _counts(report: BackupReport) -> dict[str, int]:
    return {"repositories": len(report.repositories), "rows": report.rows}


def _words(report: BackupReport) -> str:
    copied = sum(one.folder is not None for one in report.repositories)
    others = len(report.repositories) - copied
    elsewhere = f" ({counted(others, 'other')} elsewhere, named alone)" if others else ""
    return f"{counted(copied, 'repository', 'repositories')}{elsewhere}, {report.rows} rows"


def _announce(call: CommandCall, url: str, token: str | None, code: str | None) -> None:
    lines = [f"Serving at {url}"]
    page = None if code is None else code_url(url, code)
    if page is not None:
        lines += ["Sign in, once and within ten minutes, in a browser on this machine:", page]
    if token is not None:
        lines += ["Token of the first administrator, shown this once:", token]
    try:
        call.answer({"url": url, "token": token, "sign_in": page}, *lines)
        output.flush()  # whoever reads a file or a pipe waits for it, and the service runs on
    except OSError as error:
        output.warning(
            f"standard output took neither address nor token: {error.strerror}. It serves at "
            f"{url}; for a way in, start it anew on a terminal."
        )


def _named(call: CommandCall, text: str) -> tuple[str, str]:
    """Name and URL of a repository: ``NAME=URL``, or a URL whose last part is the name.

    A workspace stands for its repository.

    Raises:
        NotFoundError: no repository is there.
    """
    name, equals, place = text.partition("=")
    if not equals or ("/" in name.removeprefix("/") and is_url(name)):
        end = text.rstrip("/") if is_url(text) else str(call.path(text))
        name, place = Path(end).name, text
    url = whole_url(call.machine, place)
    try:
        connect(url, None, call.machine).close()
    except StorageError as error:
        output.warning(f"{error}. It is served all the same, for when it answers.")
    return check_repository_name(name), url
