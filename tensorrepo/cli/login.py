"""Logins at servers: `login`, `logout` and `token`."""

from __future__ import annotations

import socket
import time
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall
from tensorrepo.cli.prompts import secret
from tensorrepo.credentials import forget_token, server_url, store_token
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.server_calls import Server, server_of

ServerOption = Annotated[
    str | None, Option("--server", metavar="URL", help="This server; else the only login.")
]
ExpiresOption = Annotated[
    str | None, Option("--expires", metavar="SPAN", help="It ends after so long: 12h, 30d.")
]
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


def login_command(
    call: CommandCall,
    url: Annotated[str, Argument(metavar="URL", help="The server.")],
    user: Annotated[
        str | None, Option("--user", metavar="NAME", help="Make a token by user and password.")
    ] = None,
    with_token: Annotated[
        bool, Option("--with-token", help="Read the token from standard input.")
    ] = False,
    expires: ExpiresOption = None,
) -> None:
    """Log in to a server, so that commands may work with it.

    Asks for a token, or with --user for a password, by which it makes one. The token is kept in the
    system's keyring where there is one (extra keyring), else in a file that only you can read.

    Examples:
        tensorrepo login https://example.org
        tensorrepo login https://example.org --user ann --expires 90d
        tensorrepo login https://example.org --with-token < token.txt
    """
    server = server_url(url)
    if server.startswith("http://") and not server.startswith(_LOOPBACK):
        output.warning(f"{server} is not encrypted: whoever is on the way can read the token")
    typed = secret(f"Password of {user}" if user else f"Token of {server}", from_input=with_token)
    token = typed if user is None else _token_by_password(server, user, typed, expires)
    with Server(server, token) as asked:
        me = asked.ask("GET", "/me")
    kept_in = store_token(call.machine, server, me["name"], token, is_own=user is not None)
    call.answer(
        {"server": server, "user": me["name"], "kept_in": kept_in},
        f"Logged in to {server} as {me['name']}. The token is kept in {kept_in}.",
    )


def logout_command(
    call: CommandCall,
    url: Annotated[str, Argument(metavar="URL", help="The server.")],
    revoke: Annotated[
        bool | None,
        Option("--revoke/--keep-token", help="End the token everywhere, or leave it good."),
    ] = None,
) -> None:
    """Log out of a server: the token is forgotten here.

    One that `login` made by your password is revoked, too. One that you gave may be in use
    elsewhere, and is revoked only where you say so.

    Examples:
        tensorrepo logout https://example.org
    """
    server = server_url(url)
    login = forget_token(call.machine, server)
    if login is None:
        raise InvalidInputError(f"you are not logged in to {server}")
    wanted = login.is_own if revoke is None else revoke
    revoked = wanted and login.token is not None and _is_revoked(server, login.token)
    state = "revoked" if revoked else "still good elsewhere"
    told = f"Logged out of {server}. The token is {state}."
    call.answer({"server": server, "revoked": revoked}, told)


def token_ls_command(
    call: CommandCall,
    server: ServerOption = None,
    everybody: Annotated[
        bool, Option("--all", help="Those of all users: for who runs the server.")
    ] = False,
) -> None:
    """List tokens: for what they are, and when they were used last.

    Examples:
        tensorrepo token ls
    """
    with server_of(call.machine, server) as asked:
        found = list(asked.list("/tokens", everybody=str(everybody).lower()))
    call.show(
        found,
        {
            "token": lambda one: one["id"],
            "user": lambda one: one["user"],
            "label": lambda one: one["label"],
            "may": lambda one: scope_text(one["scope"]),
            "used": lambda one: _age(one["used_ns"]),
            "state": _state,
        },
        document=dict,
        empty="there are no tokens",
    )


def token_create_command(
    call: CommandCall,
    label: Annotated[str, Argument(metavar="LABEL", help="What it is for.")],
    scope: Annotated[
        list[str] | None,
        Option("--scope", metavar="REPO=ACTION[@REFS]", help="What it may do; repeat. Else all."),
    ] = None,
    expires: ExpiresOption = None,
    user: Annotated[
        str | None, Option("--user", metavar="NAME", help="Whose: for who runs the server.")
    ] = None,
    server: ServerOption = None,
) -> None:
    """Make a token. It is shown this once.

    It may do no more, and lasts no longer, than the token that you are logged in with.

    Examples:
        tensorrepo token create nightly --scope team/photos=read
        tensorrepo token create bot --scope "team/net=write@heads/bot/*"
    """
    wanted = {
        "label": label,
        "scope": None if scope is None else [parse_scope(one) for one in scope],
        "expires_ns": _end(expires),
        "user": user,
    }
    with server_of(call.machine, server) as asked:
        made = asked.ask("POST", "/tokens", json=wanted)
    output.note("The token is shown this once: keep it where only its user can read it.")
    call.answer(made, made["token"])


def token_revoke_command(
    call: CommandCall,
    token: Annotated[str, Argument(metavar="TOKEN", help="Its id, as `token ls` shows it.")],
    server: ServerOption = None,
) -> None:
    """Revoke a token, and those that it made.

    Examples:
        tensorrepo token revoke 3f9a01bc77d2
    """
    with server_of(call.machine, server) as asked:
        asked.ask("DELETE", f"/tokens/{token}")
    call.answer({"id": token, "revoked": True}, f"{token} is revoked.")


def parse_scope(text: str) -> dict[str, str]:
    """``team/photos=write@heads/dev/*`` as the API has it."""
    repository, equals, rest = text.partition("=")
    action, _, refs = rest.partition("@")
    if not equals or action not in {"read", "write", "mirror", "admin"}:
        raise InvalidInputError(
            f"--scope {text!r:.80}: expected REPOSITORY=read|write|mirror|admin, and @REFS behind"
        )
    return {"repository": repository, "action": action, "refs": refs or "*"}


def scope_text(scope: list[dict[str, str]] | None) -> str:
    """What a token may do, in words."""
    if scope is None:
        return "all"
    return ", ".join(
        f"{one['action']} {one['repository']}" + (f"@{one['refs']}" if one["refs"] != "*" else "")
        for one in scope
    )


def _token_by_password(server: str, user: str, password: str, expires: str | None) -> str:
    with Server(server, None) as asked:
        session = asked.ask("POST", "/session", json={"user": user, "password": password})
        wanted = {"label": f"login on {socket.gethostname()}", "expires_ns": _end(expires)}
        headers = {"X-CSRF-Token": session["csrf"]}
        made = asked.ask("POST", "/tokens", json=wanted, headers=headers)
        asked.ask("DELETE", "/session", headers=headers)
    return str(made["token"])


def _is_revoked(server: str, token: str) -> bool:
    try:
        with Server(server, token) as asked:
            asked.ask("DELETE", "/tokens/self")
    except Error as error:
        output.warning(f"the token was forgotten, but not revoked: {error}")
        return False
    return True


def _end(expires: str | None) -> int | None:
    return None if expires is None else time.time_ns() + int(parse_span(expires) * 1e9)


def _age(time_ns: int | None) -> str:
    return "never" if time_ns is None else output.age_text((time.time_ns() - time_ns) / 1e9)


def _state(token: dict[str, Any]) -> str:
    if token["revoked_ns"] is not None:
        return "revoked"
    is_over = token["expires_ns"] is not None and token["expires_ns"] <= time.time_ns()
    return "expired" if is_over else "good"
