"""Pages of merge requests: a list, a new one, and one with its changes, words, checks and merge."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final, Literal

from fastapi import Form, Query
from starlette.responses import Response

from tensorrepo.api.access.grants import Action
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.commits import change_line
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.forms import Text
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.pages.repository import ref_names
from tensorrepo.api.proposals import proposals
from tensorrepo.api.proposals.proposals import Proposal
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.repo.ids import Digest, parse_digest
from tensorrepo.repo.merge_requests.merging import Mergeability

router: Final = deferred_router(include_in_schema=False)
State = Literal["open", "merged", "closed", "all"]
Title = Annotated[str, Form(max_length=1000)]
Branch = Annotated[str, Form(max_length=1000)]
_REQUESTS: Final = 50  # of a page
_CHANGES: Final = 200


@dataclass(frozen=True, slots=True)
class Happening:
    """A comment, a review or the end of a request, in the order in which they came."""

    kind: str
    author: str
    time_ns: int
    text: str = ""
    about: str = ""


@router.get("/{repository:repository}/-/requests")
def listed(
    page: RepositoryPageOf,
    state: State = "open",
    before: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    """Requests, the newest first."""
    wanted = None if state == "all" else state
    found = list(islice(proposals.listed(page.access, state=wanted, before=before), _REQUESTS + 1))
    shown = found[:_REQUESTS]
    return page.render(
        "merge_requests.html",
        requests=shown,
        state=state,
        states=["open", "merged", "closed", "all"],
        following=shown[-1].request.number if len(found) > _REQUESTS else None,
        may_propose=_may_write(page),
    )


@router.get("/{repository:repository}/-/new-request")
def new(page: RepositoryPageOf, source: Annotated[str, Query(max_length=1000)] = "") -> Response:
    """The form that proposes a branch."""
    return _form(page, source=source)


@router.post("/{repository:repository}/-/new-request")
def propose(
    page: RepositoryPageOf,
    source: Branch = "",
    target: Branch = "",
    title: Title = "",
    text: Text = "",
) -> Response:
    """Propose it, or say in the form why it cannot be."""
    try:
        made = proposals.propose(
            page.access, source=source, target=target, title=title.strip(), text=text
        )
    except Error as error:
        return _form(page, source=source, target=target, title=title, text=text, fault=str(error))
    return page.redirect(page.here("requests", str(made.request.number)))


@router.get("/{repository:repository}/-/requests/{number:int}")
def one(page: RepositoryPageOf, number: int) -> Response:
    """One request."""
    return _shown(page, number)


@router.post("/{repository:repository}/-/requests/{number:int}/{action}")
def act(
    page: RepositoryPageOf,
    number: int,
    action: Literal["comment", "approve", "reject", "merge", "close", "reopen", "update"],
    text: Text = "",
    commit: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Do something to it, as whoever is signed in; a fault is told on its page."""
    access = page.access
    try:
        if action == "comment":
            proposals.comment(access, number, text, None)
        elif action in {"approve", "reject"}:
            verdict: Literal["approve", "reject"] = "approve" if action == "approve" else "reject"
            proposals.review(access, number, verdict, _full(commit), text)
        elif action == "merge":
            proposals.merge(access, number, head=_full(commit), commit=None, message=None)
        else:
            {"close": proposals.close, "reopen": proposals.reopen, "update": proposals.update}[
                action
            ](access, number)
    except Error as error:
        return _shown(page, number, fault=str(error), text=text)
    return page.redirect(page.here("requests", str(number)))


def _form(
    page: RepositoryPage,
    *,
    source: str = "",
    target: str = "",
    title: str = "",
    text: str = "",
    fault: str = "",
) -> Response:
    branches = ref_names(page.access)["Branches"]
    return page.render(
        "new_merge_request.html",
        branches=branches,
        source=source,
        target=target or ("main" if "main" in branches else ""),
        title=title,
        text=text,
        fault=fault,
    )


def _shown(page: RepositoryPage, number: int, *, fault: str = "", text: str = "") -> Response:
    found = proposals.find(page.access, number)
    base, lines, more = None, [], False
    if found.head is not None:
        base, changes = proposals.changes(page.access, number)
        head = found.head
        lines = [change_line(page, one, head, base) for one in islice(changes, _CHANGES + 1)]
        more = len(lines) > _CHANGES
    is_open = found.request.state == "open"
    can_write = page.access.may(Action.WRITE, found.request.target)
    return page.render(
        "merge_request.html",
        request=found.request,
        head=found.head,
        base=base,
        changes=lines[:_CHANGES],
        more=more,
        ability=_ability(page, found) if is_open else None,
        happenings=happenings(found),
        can_write=can_write,
        may_comment=_may_write(page),
        has_target=found.onto is not None,
        has_moved=page.access.refs().get(found.request.source) not in {None, found.head},
        is_author=page.caller.author == found.request.author,
        source=found.request.source.removeprefix(BRANCHES),
        target=found.request.target.removeprefix(BRANCHES),
        fault=fault,
        text=text,
    )


def _may_write(page: RepositoryPage) -> bool:
    """Whether the caller may write anything here: who may, comments and proposes."""
    level = page.caller.level(page.access.name)
    return level is not None and level >= Action.WRITE


def _ability(page: RepositoryPage, found: Proposal) -> Mergeability | None:
    if found.head is None or found.onto is None:
        return None
    return proposals.look_at(page.access, found.request.number)


def happenings(found: Proposal) -> list[Happening]:
    """What was said and decided, the oldest first."""
    request = found.request
    told = [
        Happening("comment", one.author, one.time_ns, one.text, one.path or "")
        for one in request.comments
    ]
    told += [
        Happening(
            one.verdict,
            one.author,
            one.time_ns,
            one.text,
            "" if one.commit == found.head else "of an earlier commit",
        )
        for one in request.reviews
    ]
    if request.ended is not None:
        told.append(Happening(request.state, request.ended.by, request.ended.time_ns))
    return sorted(told, key=lambda one: one.time_ns)


def _full(digest: str) -> Digest:
    """The commit that the form was about, so that nobody approves of another one."""
    if len(digest) != 64:
        raise InvalidInputError("the form does not say which commit it is about: reload the page")
    return parse_digest(digest)
