"""Opening of repositories for Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tensorrepo import connect
from tensorrepo.context import Context, RepositoryOrigin
from tensorrepo.policy import with_policy
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repository import Repository
from tensorrepo.this_machine import machine


def init(
    url: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
    author: str | None = None,
    log: str | None = None,
) -> Repository:
    """Make a repository and open it.

    Args:
        url: a folder, ``s3://bucket/prefix``, ``gs://``, ``az://``, ``memory://name``, or any URL
            that fsspec knows; ``https://host/team/name`` of a service, which makes it for admins of
            the name.
        storage_options: credentials, endpoint and the like; else the usual environment variables.
        author: ``Name <email>`` of commits; else TENSORREPO_AUTHOR, tensorrepo's or git's config.
        log: the SQL database that its log is to be in, ``postgresql://user@host/database`` or
            ``sqlite:///path``, for many commits a second. This user's settings remember which.

    Raises:
        ConflictError: there is a repository already: `open` it.
    """
    origin = _origin(url, storage_options, author, log=log)
    here = machine()
    core = connect.create(origin.url, dict(origin.storage_options), here, log=origin.log)
    return Repository(Context(with_policy(core, here), origin, here, reopen))


def open_repository(
    url: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
    author: str | None = None,
    outside: Iterable[str | Path] | Mapping[str, Mapping[str, str]] = (),
    catalog: str | None = None,
    log: str | None = None,
) -> Repository:
    """Open the repository at `url` (`tensorrepo.open`).

    Args:
        url: as for `init`, and the next two; the folder of a workspace stands for its repository.
        storage_options: credentials, endpoint and the like; else the usual environment variables.
        author: ``Name <email>`` of commits.
        outside: folders and URLs below which datasets may point at files and links that the
            repository does not hold; as a mapping with the storage options of each. What
            ``tensorrepo config outside.allow`` says is allowed, too.
        catalog: URL of the SQL catalog, ``postgresql://...`` or ``sqlite:///...``; else what
            TENSORREPO_CATALOG or ``tensorrepo config catalog.url`` says, else a SQLite file in
            this user's cache folder.
        log: where its log is, if that is in a SQL database; else what TENSORREPO_LOG or
            ``tensorrepo config log.url`` says, or `init` noted for this user.

    Raises:
        NotFoundError: there is none.
    """
    place = _repository(url)
    return Repository(_open(_origin(place, storage_options, author, outside, catalog, log)))


def opened_once(url: str | Path) -> Repository:
    """The repository at `url`, which a process opens once: for workers that are called often."""
    return Repository(reopen(_origin(_repository(url), None, None)))


@lru_cache(maxsize=16)
def reopen(origin: RepositoryOrigin) -> Context:
    """A context out of a pickle: opened once in a process, however many pickles name it."""
    return _open(origin)


def _open(origin: RepositoryOrigin) -> Context:
    here = machine()
    core = connect.connect(
        origin.url,
        dict(origin.storage_options),
        here,
        more_outside={prefix: dict(options) for prefix, options in origin.outside},
        log=origin.log,
    )
    return Context(with_policy(core, here), origin, here, reopen)


def _origin(
    url: str | Path,
    storage_options: Mapping[str, str] | None,
    author: str | None,
    outside: Iterable[str | Path] | Mapping[str, Mapping[str, str]] = (),
    catalog: str | None = None,
    log: str | None = None,
) -> RepositoryOrigin:
    options = outside if isinstance(outside, Mapping) else {}
    allowed = tuple(
        (_anywhere(str(each)), tuple(sorted(options.get(str(each), {}).items())))
        for each in outside
    )
    options_given = tuple(sorted((storage_options or {}).items()))
    database = None if log is None else connect.whole_database(log, machine())
    return RepositoryOrigin(_anywhere(url), options_given, author, allowed, catalog, database)


def _repository(url: str | Path) -> str:
    """Where the repository is that `url` names. Raises InvalidInputError: it is empty."""
    place = _anywhere(url)
    return place if connect.is_url(place) else connect.repository_at(machine(), place)


def _anywhere(url: str | Path) -> str:
    """`url` as it means the same place in another folder. Raises InvalidInputError: it is empty."""
    text = str(url)
    if not text:  # of a variable that is not set: the repository would lie in the current folder
        raise InvalidInputError('the URL of the repository is empty: "." is the current folder')
    if not connect.is_url(text):  # another process may work in another folder
        text = str(Path(text).expanduser().absolute())
    return text
