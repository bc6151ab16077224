"""Records of merge requests: what is proposed, said, approved and checked.

    requests/<n>/head        the commit that is proposed
    heads/meta/requests      branch whose file files/requests/<n>.json says all else

So they are copied, backed up and audited like all else. Numbers count from 1; a file stays for
ever, so that no number is given twice. `editing` writes them, `merging` merges.

Source:
    docs/spec/requests.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import iterate, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.json_rules import refuse_newer
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.names import check_path, check_ref, check_text
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.typed_decoding import from_json

BRANCH: Final = "meta/requests"
FOLDER: Final = "files/requests/"
SUFFIX: Final = ".json"
VERSION: Final = 1
MAX_FILE_BYTES: Final = 4 << 20
MAX_TEXT_BYTES: Final = 64 << 10
MAX_TITLE_BYTES: Final = 512
MAX_CHECKS: Final = 100
CHECK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

RequestState = Literal["open", "merged", "closed"]
Verdict = Literal["approve", "reject"]
CheckState = Literal["pending", "passed", "failed"]
_Name = Annotated[Digest, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Comment(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Words about a request; with `path`, about that entry of commit `commit`."""

    author: str
    time_ns: int
    text: str
    commit: _Name | None = None
    path: str | None = None


class Review(Struct, frozen=True, forbid_unknown_fields=True):
    """A verdict on one commit."""

    author: str
    time_ns: int
    commit: _Name
    verdict: Verdict
    text: str = ""


class CheckReport(Struct, frozen=True, forbid_unknown_fields=True):
    """What a check says about one commit."""

    reporter: str
    time_ns: int
    commit: _Name
    state: CheckState
    text: str = ""
    url: str = ""


class Ending(Struct, frozen=True, forbid_unknown_fields=True):
    """How a request ended: who closed it, and for a merge the commit that the target moved to."""

    by: str
    time_ns: int
    commit: _Name | None = None


class MergeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of one file.

    Attributes:
        number: number of the request.
        title: in a line.
        text: what it is for.
        source: ref whose commits are proposed.
        target: ref that they are to come into.
        author: who proposed it.
        opened_ns: UTC in ns.
        state: open, merged or closed.
        comments: in the order in which they were made.
        reviews: the newest of each reviewer.
        checks: the newest report of each check, by its name.
        ended: how it ended; None while it is open.
    """

    number: Annotated[int, Meta(ge=1)]
    title: str
    source: str
    target: str
    author: str
    opened_ns: int
    text: str = ""
    state: RequestState = "open"
    comments: tuple[Comment, ...] = ()
    reviews: tuple[Review, ...] = ()
    checks: dict[str, CheckReport] = {}
    ended: Ending | None = None
    version: int = VERSION

    def passed(self, head: Digest) -> frozenset[str]:
        """Names of the checks that passed on that commit."""
        return frozenset(
            name
            for name, report in self.checks.items()
            if report.commit == head and report.state == "passed"
        )


def head_ref(number: int) -> str:
    """The ref of the commit that a request proposes."""
    return f"requests/{number}/head"


def request_path(number: int) -> str:
    return f"{FOLDER}{number}{SUFFIX}"


def request_at(objects: ObjectSource, root: bytes, number: int) -> MergeRequest:
    """The request of that number, of a tree of branch `BRANCH`. Raises NotFoundError."""
    entry = lookup(objects, root, request_path(number))
    if entry is None:
        raise NotFoundError(f"there is no merge request {number}")
    data = objects.get(entry.digest).payload
    return decode_request(data, f"merge request {number}")


def numbers_at(objects: ObjectSource, root: bytes) -> list[int]:
    """Numbers of all requests of a tree of branch `BRANCH`, ascending."""
    return sorted(_numbers(objects, root))


def _numbers(objects: ObjectSource, root: bytes) -> Iterator[int]:
    for path, _ in iterate(objects, root, FOLDER):
        name = path.removeprefix(FOLDER).removesuffix(SUFFIX)
        if name.isdigit():
            yield int(name)


def root_at(objects: ObjectSource, view: LogView) -> bytes | None:
    """The tree of branch `BRANCH` at `view`; None where there never was a request."""
    commit = view.state.refs.get(BRANCHES + BRANCH)
    return None if commit is None else read_commit(objects, commit).tree


def find_request(objects: ObjectSource, view: LogView, number: int) -> MergeRequest:
    """Raises NotFoundError."""
    root = root_at(objects, view)
    if root is None:
        raise NotFoundError(f"there is no merge request {number}")
    return request_at(objects, root, number)


def encode_request(request: MergeRequest) -> bytes:
    """Content of the file: JSON, sorted, for people who look at the branch, too.

    Raises:
        InvalidInputError: a text is too long, or has characters that deceive; or all is.
    """
    check_request(request)
    data = msgspec.json.format(msgspec.json.encode(request, order="sorted"), indent=2) + b"\n"
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInputError(
            f"merge request {request.number} has {len(data)} bytes of words, at most "
            f"{MAX_FILE_BYTES} are allowed: open another one"
        )
    return data


def decode_request(data: bytes | memoryview, where: str) -> MergeRequest:
    """Raises CorruptError, which names `where`, for what is no such file; for a newer one
    UnsupportedError.
    """
    refuse_newer(data, VERSION, where)
    try:
        request = from_json(data, MergeRequest)
        check_request(request)
    except (msgspec.MsgspecError, InvalidInputError, RecursionError) as error:
        raise CorruptError(f"{where}: {error}") from error
    if request.version != VERSION:
        raise CorruptError(f"{where}: version {request.version}, this tensorrepo knows {VERSION}")
    return request


def check_request(request: MergeRequest) -> None:
    """Raises InvalidInputError for what no request may hold."""
    if not request.title.strip():
        raise InvalidInputError("a merge request has a title")
    _check_line(request.title, "a title", MAX_TITLE_BYTES)
    _check_words(request.text, "the words of a request")
    for ref in (request.source, request.target):
        if not check_ref(ref).startswith(BRANCHES):
            raise InvalidInputError(f"branches are merged, and {ref!r:.100} is none")
    for comment in request.comments:
        _check_words(comment.text, "a comment")
        if comment.path is not None:
            check_path(comment.path)
    for review in request.reviews:
        _check_words(review.text, "a review")
    _check_reports(request.checks)
    if (request.state == "open") != (request.ended is None):
        raise InvalidInputError("a request that is open has not ended, and every other has")


def _check_reports(checks: Mapping[str, CheckReport]) -> None:
    if len(checks) > MAX_CHECKS:
        raise InvalidInputError(f"{len(checks)} checks, at most {MAX_CHECKS} are allowed")
    for name, report in checks.items():
        if not CHECK_NAME.fullmatch(name):
            raise InvalidInputError(f"{name!r:.120} is no name of a check")
        _check_words(report.text, f"check {name}")
        _check_line(report.url, f"URL of check {name}", 2048)
        if report.url and not report.url.startswith(("https://", "http://")):
            raise InvalidInputError(f"URL of check {name}: it begins with https:// or http://")


def _check_line(text: str, what: str, limit_bytes: int) -> None:
    check_text(text, what, limit_bytes=limit_bytes, lines=False)


def _check_words(text: str, what: str) -> None:
    check_text(text, what, limit_bytes=MAX_TEXT_BYTES, lines=True)
