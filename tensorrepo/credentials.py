"""Credentials of servers: the tokens that `tensorrepo login` keeps, and which one a URL gets.

A token lies in the system's keyring where there is one (extra `keyring`), else in a file that
nobody else may read. It is sent to URLs below the one that it was kept for, and to no others:
neither to another port of the same host, nor to where a redirect leads.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from tensorrepo.connect import Machine, replace_settings, unwritten
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, StorageError
from tensorrepo.repo.typed_decoding import from_json

KEYRING_SERVICE: Final = "tensorrepo"
TOKEN_VARIABLE: Final = "TENSORREPO_TOKEN"  # noqa: S105  the name of a variable
SERVER_VARIABLE: Final = "TENSORREPO_SERVER"
_PORTS: Final = {"http": 80, "https": 443}
_OTHERS: Final = 0o077


class SecretStore(Protocol):
    """The part of a keyring that is used here."""

    def get_password(self, service: str, username: str, /) -> str | None: ...
    def set_password(self, service: str, username: str, password: str, /) -> None: ...
    def delete_password(self, service: str, username: str, /) -> None: ...


class StoredLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A login of this user.

    Attributes:
        user: who the server says that it is.
        token: None where the keyring has it.
        is_own: the login made the token, so nobody else uses it.
    """

    user: str
    token: str | None = None
    is_own: bool = False

    def __repr__(self) -> str:
        return f"StoredLogin({self.user!r})"


def server_url(text: str) -> str:
    """The URL of a server in its one form: no user, no default port, no slash at the end.

    Raises:
        InvalidInputError: it is no http or https URL, or holds a password.
    """
    parts = urlsplit(text.strip())
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in _PORTS or not parts.hostname or port == -1:
        raise InvalidInputError(f"a server is https://host[:port][/path], not {parts.path!r:.120}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInputError(
            "the URL of a server holds no user, password or question: `tensorrepo login` asks"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in {None, _PORTS[parts.scheme]} else f":{port}"
    return f"{parts.scheme}://{host}{shown}{parts.path.rstrip('/')}"


def stored_token(machine: Machine, url: str) -> str | None:
    """The token that is sent to `url`, a server or something below it; None: there is none.

    ``TENSORREPO_TOKEN`` comes first, for the server that ``TENSORREPO_SERVER`` names alone.

    Raises:
        PermissionDenied: others may read the file of tokens.
        StorageError: the keyring that has the token does not answer.
    """
    wanted = server_url(url)
    told, server = (machine.environment.get(key) for key in (TOKEN_VARIABLE, SERVER_VARIABLE))
    if told and server and _is_below(wanted, server_url(server)):
        return told
    logins = stored_logins(machine)
    above = [server for server in logins if _is_below(wanted, server)]
    if not above:
        return None
    nearest = max(above, key=len)
    return logins[nearest].token or _of_keyring(nearest)


def stored_logins(machine: Machine) -> dict[str, StoredLogin]:
    """Logins of this user by the URLs of their servers."""
    path = credentials_file(machine)
    try:
        if path.stat().st_mode & _OTHERS:
            raise PermissionDenied(
                f"{path} holds tokens, and others may read it: `chmod 600 {path}`, and revoke them "
                "if somebody has"
            )
        return from_json(path.read_bytes(), dict[str, StoredLogin])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except msgspec.MsgspecError:
        # Without its own words, which may repeat a token.
        raise InvalidInputError(f"{path} is damaged: delete it, and log in again") from None


def store_token(machine: Machine, url: str, user: str, token: str, *, is_own: bool = False) -> str:
    """Keep a token for a server; gives where it is kept, in words. See `StoredLogin.is_own`."""
    server = server_url(url)
    keyring = system_keyring()
    if keyring is not None:
        try:
            keyring.set_password(KEYRING_SERVICE, server, token)
        except Exception:  # noqa: BLE001  each keyring has failures of its own; the file remains
            keyring = None
    with _changing(machine) as logins:
        logins[server] = StoredLogin(user, token if keyring is None else None, is_own)
    return str(credentials_file(machine)) if keyring is None else "the system's keyring"


def forget_token(machine: Machine, url: str) -> StoredLogin | None:
    """Forget the login of a server; gives it, its token too. None: there was none."""
    server = server_url(url)
    with _changing(machine) as logins:
        login = logins.pop(server, None)
        if login is None or login.token is not None:
            return login
        token = _of_keyring(server)
        keyring = system_keyring()
        if keyring is not None and token is not None:
            keyring.delete_password(KEYRING_SERVICE, server)
        return msgspec.structs.replace(login, token=token)


def credentials_file(machine: Machine) -> Path:
    """Where tokens are kept, or that the keyring has them."""
    return machine.config_file.with_name("credentials.json")


def system_keyring() -> SecretStore | None:
    """The keyring of the system; None: there is none, or the extra is not installed."""
    try:
        import keyring
        from keyring.backends.fail import Keyring as NoKeyring
        from keyring.backends.null import Keyring as ForgetfulKeyring
    except ModuleNotFoundError:
        return None
    chosen: Any = keyring.get_keyring()
    if isinstance(chosen, (NoKeyring, ForgetfulKeyring)):
        return None
    found: SecretStore = chosen
    return found


def _of_keyring(server: str) -> str | None:
    keyring = system_keyring()
    if keyring is None:
        raise StorageError(
            f"the token of {server} is in the system's keyring, which cannot be reached from here: "
            "unlock it, or log in again"
        )
    try:
        return keyring.get_password(KEYRING_SERVICE, server)
    except Exception as error:
        raise StorageError(
            f"the system's keyring does not give the token of {server}: {error}. Unlock it, or log "
            "in again"
        ) from error


def _is_below(url: str, server: str) -> bool:
    return url == server or url.startswith(f"{server}/")


@contextmanager
def _changing(machine: Machine) -> Iterator[dict[str, StoredLogin]]:
    """Logins, written back as a whole when the block ends; one process at a time."""
    path = credentials_file(machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            logins = stored_logins(machine)
            yield logins
            replace_settings(path, msgspec.json.encode(logins))
    except OSError as error:
        raise unwritten(path, error) from error
