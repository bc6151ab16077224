"""SDK handle of the repository that a command works on.

Apart from `options`, for the SDK's handles bring all that datasets and models can do: twice the
time that a command needs to start which only looks around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.cli.options import CommandCall, RepoCall
from tensorrepo.context import Context, RepositoryOrigin
from tensorrepo.formats.common.arguments import chosen
from tensorrepo.formats.common.ray_tasks import connected_ray
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repository import Repository
from tensorrepo.sdk import reopen

if TYPE_CHECKING:
    from tensorrepo.datasets.dataset import Dataset


def cluster_context(call: CommandCall, executor: str, address: str | None) -> Context | None:
    """The repository as workers of a cluster open it; None where no cluster is meant.

    This process is connected to the cluster then.
    """
    if chosen("--executor", executor, ("thread", "ray")) == "thread":
        if address is not None:
            raise InvalidInputError("--ray-address is the cluster's of --executor ray: give both")
        return None
    connected_ray(address)
    return handle_of(call).context


def handle_of(call: CommandCall) -> Repository:
    """The repository of a command; who works in the workspace is its author."""
    session = call.session
    try:
        who = session.author()
    except InvalidInputError:
        who = None  # commands that only look need no author; the others say how to tell
    core = session.repository
    origin = RepositoryOrigin(core.url, author=who)
    return Repository(Context(core, origin, session.machine, reopen))


def streamed_handle(call: RepoCall, entry: str) -> Dataset:
    """The dataset or view of an argument ``[REF:]DATASET``."""
    revision, path, stored = call.session.find(entry)
    handle = handle_of(call)
    if stored.kind is Kind.DATASET:
        return handle.dataset(path, revision.digest)
    if stored.kind is Kind.VIEW:
        return handle.view(path, revision.digest)
    raise InvalidInputError(f"{path} is a {stored.kind.label}, which has no rows")
