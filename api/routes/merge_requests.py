"""Merge requests of a repository."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, Field

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.proposals import proposals
from tensorrepo.api.proposals.proposals import Proposal
from tensorrepo.api.requests import AccessOf
from tensorrepo.api.routes.pagination import (
    Cursor,
    Limit,
    ListPage,
    decode_cursor,
    encode_cursor,
    keyed_page,
)
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.merge_requests.records import (
    MAX_TEXT_BYTES,
    MAX_TITLE_BYTES,
    CheckState,
    RequestState,
    Verdict,
)
from tensorrepo.repo.names import path_key

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/requests", tags=["merge requests"]
)

Number = Annotated[int, Path(ge=1, le=10**9)]
Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE_BYTES)]
Text = Annotated[str, Field(max_length=MAX_TEXT_BYTES)]
BranchName = Annotated[str, Field(min_length=1, max_length=1000, examples=["main"])]
CommitDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class NewRequest(BaseModel):
    """What is proposed."""

    source: BranchName = Field(description="Branch whose commits are proposed.")
    target: BranchName = Field(default="main", description="Branch that they are to come into.")
    title: Title
    text: Text = ""


class RequestWords(BaseModel):
    """Other words; null keeps those that are."""

    title: Title | None = None
    text: Text | None = None


class NewComment(BaseModel):
    """What is said; with `path`, about that path as it is in the proposed commit."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BYTES)]
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class NewReview(BaseModel):
    """A verdict on the commit that was looked at."""

    verdict: Verdict
    commit: CommitDigest
    text: Text = ""


class NewReport(BaseModel):
    """How a check went on a commit."""

    state: CheckState
    commit: CommitDigest
    text: Text = ""
    url: Annotated[str, Field(max_length=2048)] = ""


class HowToMerge(BaseModel):
    """What is merged, and how."""

    head: CommitDigest | None = Field(
        default=None, description="The commit that was looked at: if it is another by now, 409."
    )
    commit: CommitDigest | None = Field(
        default=None,
        description="A merge that the caller made and pushed, signed for instance.",
    )
    message: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BYTES)] | None = None


class CommentInfo(BaseModel):
    """What somebody said."""

    author: str
    time_ns: int
    text: str
    commit: str | None
    path: str | None


class ReviewInfo(BaseModel):
    """What somebody thinks of one commit."""

    author: str
    time_ns: int
    commit: str
    verdict: str
    text: str
    current: bool = Field(description="Whether it is about what is proposed now.")


class ReportInfo(BaseModel):
    """How a check went on one commit."""

    name: str
    reporter: str
    time_ns: int
    commit: str
    state: str
    text: str
    url: str
    current: bool = Field(description="Whether it is about what is proposed now.")


class RequestSummary(BaseModel):
    """A merge request, in a list."""

    number: int
    title: str
    state: str = Field(examples=["open", "merged", "closed"])
    source: str = Field(examples=["heads/more"])
    target: str = Field(examples=["heads/main"])
    author: str
    opened_ns: int
    head: str | None = Field(description="The commit that is proposed.")
    onto: str | None = Field(description="The commit that the target is at.")

    @classmethod
    def of(cls, one: Proposal) -> RequestSummary:
        return cls(**_summary(one))


class RequestInfo(RequestSummary):
    """A merge request."""

    text: str
    comments: list[CommentInfo]
    reviews: list[ReviewInfo]
    checks: list[ReportInfo]
    ended_by: str | None
    ended_ns: int | None
    merged_as: str | None = Field(description="The commit that the target moved to.")

    @classmethod
    def of(cls, one: Proposal) -> RequestInfo:
        request, ended = one.request, one.request.ended
        return cls(
            **_summary(one),
            text=request.text,
            comments=[
                CommentInfo(
                    author=each.author,
                    time_ns=each.time_ns,
                    text=each.text,
                    commit=each.commit,
                    path=each.path,
                )
                for each in request.comments
            ],
            reviews=[
                ReviewInfo(
                    author=each.author,
                    time_ns=each.time_ns,
                    commit=each.commit,
                    verdict=each.verdict,
                    text=each.text,
                    current=each.commit == one.head,
                )
                for each in request.reviews
            ],
            checks=[
                ReportInfo(
                    name=name,
                    reporter=each.reporter,
                    time_ns=each.time_ns,
                    commit=each.commit,
                    state=each.state,
                    text=each.text,
                    url=each.url,
                    current=each.commit == one.head,
                )
                for name, each in sorted(request.checks.items())
            ],
            ended_by=None if ended is None else ended.by,
            ended_ns=None if ended is None else ended.time_ns,
            merged_as=None if ended is None else ended.commit,
        )


def _summary(one: Proposal) -> dict[str, Any]:
    request = one.request
    names = ("number", "title", "state", "source", "target", "author", "opened_ns")
    return {
        **{name: getattr(request, name) for name in names},
        "head": one.head,
        "onto": one.onto,
    }


class EntryInfo(BaseModel):
    """An entry of a tree."""

    kind: str = Field(examples=["dataset", "model"])
    digest: str

    @classmethod
    def of(cls, entry: Entry | None) -> EntryInfo | None:
        return None if entry is None else cls(kind=entry.kind.label, digest=entry.digest)


class PathChangeInfo(BaseModel):
    """What became of one path; null on a side: it is absent there."""

    path: str
    old: EntryInfo | None
    new: EntryInfo | None


class RequestChanges(ListPage[PathChangeInfo]):
    """Paths that a request changes, against the commit `base` at which the branches parted."""

    base: str | None


class ConflictInfo(BaseModel):
    """A path that both sides changed."""

    path: str
    reason: str


class MergeabilityInfo(BaseModel):
    """Whether a request can be merged as things stand."""

    ready: bool
    merged: bool = Field(description="Whether the target has it already.")
    conflicts: list[ConflictInfo]
    missing_checks: list[str]
    must_be_signed: bool = Field(description="Whether the caller has to make the merge commit.")


@router.get("", summary="Merge requests")
def list_requests(
    access: AccessOf,
    state: Annotated[RequestState | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[RequestSummary]:
    """Those of branches that the caller may read, the newest first."""
    told = decode_cursor(cursor)
    if told is not None and not (told.isascii() and told.isdigit() and len(told) < 12):
        raise InvalidInputError("this cursor is none of ours: begin without one")
    every = proposals.listed(access, state=state, before=None if told is None else int(told))
    found = [one for one, _ in zip(every, range(limit + 1), strict=False)]
    more = len(found) > limit
    items = [RequestSummary.of(one) for one in found[:limit]]
    return ListPage(items=items, next=encode_cursor(str(items[-1].number)) if more else None)


@router.post("", status_code=201, summary="Propose a branch")
def propose(access: AccessOf, new: NewRequest) -> RequestInfo:
    """Takes the right to write the source branch, and to read the target."""
    made = proposals.propose(
        access, source=new.source, target=new.target, title=new.title, text=new.text
    )
    return RequestInfo.of(made)


@router.get("/{number}", summary="One merge request")
def get_request(access: AccessOf, number: Number) -> RequestInfo:
    """With all that was said."""
    return RequestInfo.of(proposals.find(access, number))


@router.patch("/{number}", summary="Describe it otherwise")
def describe_request(access: AccessOf, number: Number, words: RequestWords) -> RequestInfo:
    """By its author, or by who may write the target."""
    return RequestInfo.of(proposals.describe(access, number, title=words.title, text=words.text))


@router.post("/{number}/update", summary="Propose what the source branch is at now")
def update_request(access: AccessOf, number: Number) -> RequestInfo:
    """Approvals and checks were for what it was."""
    return RequestInfo.of(proposals.update(access, number))


@router.get("/{number}/changes", summary="Paths that it changes")
def list_changes(
    access: AccessOf, number: Number, cursor: Cursor = None, limit: Limit = 100
) -> RequestChanges:
    """In the order of trees."""
    base, found = proposals.changes(access, number)
    keyed = (
        (
            "\n".join(path_key(one.path)),
            PathChangeInfo(path=one.path, old=EntryInfo.of(one.old), new=EntryInfo.of(one.new)),
        )
        for one in found
    )
    items, following = keyed_page(keyed, cursor, limit)
    return RequestChanges(items=items, next=following, base=base)


@router.get("/{number}/mergeable", summary="Whether it can be merged")
def get_mergeability(access: AccessOf, number: Number) -> MergeabilityInfo:
    """As things stand; merges for trial, and writes nothing."""
    found = proposals.look_at(access, number)
    return MergeabilityInfo(
        ready=found.is_ready,
        merged=found.is_merged,
        conflicts=[ConflictInfo(path=one.path, reason=one.reason) for one in found.conflicts],
        missing_checks=list(found.missing_checks),
        must_be_signed=found.must_be_signed,
    )


@router.post("/{number}/comments", status_code=201, summary="Comment")
def add_comment(access: AccessOf, number: Number, new: NewComment) -> RequestInfo:
    """In the caller's name."""
    return RequestInfo.of(proposals.comment(access, number, new.text, new.path))


@router.post("/{number}/reviews", status_code=201, summary="Approve, or do not")
def add_review(access: AccessOf, number: Number, new: NewReview) -> RequestInfo:
    """For one commit, in the caller's name; takes the right to write the target."""
    made = proposals.review(access, number, new.verdict, Digest(new.commit), new.text)
    return RequestInfo.of(made)


@router.put("/{number}/checks/{name}", summary="Report a check")
def report_check(
    access: AccessOf,
    number: Number,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")],
    report: NewReport,
) -> RequestInfo:
    """In the caller's name; takes the right to write `requests/<number>/head`."""
    made = proposals.report_check(
        access,
        number,
        name,
        report.state,
        commit=Digest(report.commit),
        text=report.text,
        url=report.url,
    )
    return RequestInfo.of(made)


@router.post("/{number}/close", summary="Give it up")
def close_request(access: AccessOf, number: Number) -> RequestInfo:
    """By its author, or by who may write the target."""
    return RequestInfo.of(proposals.close(access, number))


@router.post("/{number}/reopen", summary="Take back that it was closed")
def reopen_request(access: AccessOf, number: Number) -> RequestInfo:
    """As closing."""
    return RequestInfo.of(proposals.reopen(access, number))


@router.post("/{number}/merge", summary="Merge it")
def merge_request(access: AccessOf, number: Number, how: HowToMerge) -> RequestInfo:
    """One entry of the log moves the target and closes the request.

    409 with the target's head where its commits must be signed: merge, sign, push to a branch of
    your own, and repeat with `commit`.
    """
    made = proposals.merge(
        access,
        number,
        head=None if how.head is None else Digest(how.head),
        commit=None if how.commit is None else Digest(how.commit),
        message=how.message,
    )
    return RequestInfo.of(made)
