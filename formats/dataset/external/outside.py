"""Access policy for URLs outside the repository.

A dataset may point at data that stays where it is: values of `Link` columns, and files that were
adopted in place. The author of the dataset chose those URLs, not its reader, so nothing is read but
what lies under prefixes that the reader has allowed. This module decides; `outside_read` reads.

Source:
    docs/spec/foreign.md, section "Which URLs are read".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import quote, unquote

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, UnsupportedError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*::")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SAME = {"s3a": "s3", "gcs": "gs", "azure": "az", "adl": "az"}
_WEB = {"http": ":80", "https": ":443"}
_QUOTED = ("file", *_WEB)  # their paths are percent-encoded
_OURS = (*_QUOTED, *_SAME, *_SAME.values(), "abfs", "abfss")  # elsewhere "::" joins file systems
_LOCAL = ("local", "dir")  # other names of fsspec for this machine's files


@dataclass(frozen=True, slots=True)
class Stat:
    """One version of what lies at a URL.

    `etag` is what its store calls this version, as it came; of a local file ``mtime-`` and the
    nanoseconds of its last change; None where the store names no versions.
    """

    size: int
    etag: str | None


class Outside(Protocol):
    """Whoever may read outside the repository. Thread-safe and picklable."""

    def stat(self, url: str) -> Stat:
        """What lies at `url` now.

        Raises:
            PermissionDenied: `url` is under no allowed prefix, or the store refuses.
            NotFoundError: there is nothing.
        """
        ...

    def read(self, url: str, start: int, stop: int, unchanged: Stat | None = None) -> memoryview:
        """Bytes ``[start, stop)`` of what lies at `url`.

        With `unchanged`, they are of that version.

        Raises:
            PermissionDenied, NotFoundError: as `stat`.
            CorruptError: it is another version than `unchanged`, or it ends before `stop`.
        """
        ...


class Nothing:
    """Nothing outside may be read: what readers begin with."""

    prefixes: tuple[str, ...] = ()

    def stat(self, url: str) -> Stat:
        raise refusal(parse_address(url), ())

    def read(self, url: str, start: int, stop: int, unchanged: Stat | None = None) -> memoryview:
        del start, stop, unchanged
        raise refusal(parse_address(url), ())


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, taken apart and normalised: no two spellings of one place, and no way upward.

    `host` is a bucket, a container or a host with its port; "" for files of this machine. `path`
    is decoded, its segments neither empty nor "." nor "..".
    """

    scheme: str
    host: str
    path: tuple[str, ...]

    @property
    def key(self) -> str:
        """The path within the host; of a local file the absolute path."""
        joined = "/".join(self.path)
        return f"/{joined}" if self.scheme == "file" else joined

    @property
    def root(self) -> str:
        """The URL of the host alone."""
        return f"{self.scheme}://{self.host}"

    @property
    def url(self) -> str:
        """The URL, without anything secret: it may be shown and stored."""
        path = "/".join(self.path)
        return f"{self.root}/{quote(path) if self.scheme in _QUOTED else path}"

    @property
    def folder(self) -> Address:
        """The folder that it lies in."""
        return Address(self.scheme, self.host, self.path[:-1])

    def within(self, prefix: Address) -> bool:
        """Whether it is `prefix`, or lies below it."""
        same = (self.scheme, self.host) == (prefix.scheme, prefix.host)
        return same and self.path[: len(prefix.path)] == prefix.path


def parse_address(url: str) -> Address:
    """The normalised form of a URL or of an absolute path.

    Raises:
        InvalidInputError: no absolute URL; credentials, "..", "?" or "#" in it. Its message shows
            no credentials.
        UnsupportedError: a chain of file systems.
    """
    match = _SCHEME.match(url)
    shown = hide_secrets(url)
    if _CONTROL.search(url):
        raise InvalidInputError(f"{shown!r} has control characters")
    name = match[1].lower() if match else ""
    if _CHAIN.match(url) or name in _LOCAL or (name not in ("", *_OURS) and "::" in url):
        raise UnsupportedError(f"{shown}: chains of file systems are not read in place")
    if match is None:
        if not url.startswith("/"):
            raise InvalidInputError(f"{shown}: expected an absolute path, or a URL with its scheme")
        return Address("file", "", _segments(url, shown, doubled=True))
    scheme = _SAME.get(name, name)
    host, _, path = url[match.end() :].partition("/")
    if scheme in _WEB and re.search(r"[?#]", host + path):
        raise InvalidInputError(
            f"{shown}: '?' and '#' are not read in place. Write what lies there to a file."
        )
    host = _host(scheme, host, shown)
    if scheme in _QUOTED:
        path = unquote(path)
    return Address(scheme, host, _segments(path, shown, doubled=scheme == "file"))


def hide_secrets(url: str) -> str:
    """`url` without credentials and query, for messages."""
    match = _SCHEME.match(url)
    if match is None:
        return url
    host, slash, path = url[match.end() :].partition("/")
    if match[1].lower() in ("http", "https"):
        host, path = re.split(r"[?#]", host)[0], re.split(r"[?#]", path)[0]
    if "@" in host and not _is_container(match[1].lower(), host):
        host = host.rpartition("@")[2]
    return f"{match[0]}{host}{slash}{path}"


def check_allowed(address: Address, prefixes: Sequence[Address]) -> Address:
    """The prefix that allows `address`.

    Raises:
        PermissionDenied: none does; says how to allow it.
    """
    for prefix in prefixes:
        if address.within(prefix):
            return prefix
    raise refusal(address, prefixes)


def refusal(address: Address, prefixes: Iterable[Address]) -> PermissionDenied:
    """The error for what lies under no allowed prefix."""
    allowed = ", ".join(f"{prefix.url}" for prefix in prefixes) or "nothing"
    folder = f"{address.folder.url.rstrip('/')}/"
    return PermissionDenied(
        f"{address.url} lies outside the repository and may not be read; allowed is {allowed}. "
        f"If you trust who wrote the dataset, allow its prefix: tensorrepo.open(..., "
        f"outside=[{folder!r}]), or on the command line --allow-outside {folder}"
    )


def _host(scheme: str, host: str, shown: str) -> str:
    if scheme == "file":
        if host not in ("", "localhost"):
            raise InvalidInputError(f"{shown}: a file URL has three slashes: file:///path")
        return ""
    if "@" in host and not _is_container(scheme, host):
        raise InvalidInputError(
            f"{shown}: credentials do not belong into a URL, which is shown and stored. Put them "
            "into the environment or the storage options."
        )
    if not host:
        raise InvalidInputError(f"{shown}: the URL names no host or bucket")
    return host.lower().removesuffix(_WEB[scheme]) if scheme in _WEB else host


def _is_container(scheme: str, host: str) -> bool:
    """Whether an @ in the host is Azure's ``container@account`` rather than a credential."""
    return scheme in ("abfs", "abfss") and ":" not in host


def _segments(path: str, shown: str, *, doubled: bool) -> tuple[str, ...]:
    segments = path.strip("/").split("/") if path.strip("/") else []
    if doubled:
        segments = [segment for segment in segments if segment]
    for segment in segments:
        # A server may decode once more: what becomes ".." there must not pass here either.
        if not segment or _decoded(segment) in (".", ".."):
            raise InvalidInputError(f"{shown}: '.', '..' and empty names are not read in place")
    return tuple(segments)


def _decoded(segment: str) -> str:
    while (once := unquote(segment)) != segment:
        segment = once
    return segment
