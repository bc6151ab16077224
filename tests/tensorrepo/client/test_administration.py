"""Accounts, grants, webhooks and merge requests by the typed client, against a real service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorrepo as tr
from tensorrepo.client.client import Client, RepositoryClient
from tensorrepo.repo.errors import ConflictError, NotFoundError, PermissionDenied
from tests.support.servers.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(
        tmp_path_factory.mktemp("service"), outbound_allow=("127.0.0.1/32",)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url, token=service.token) as opened:
        yield opened


@pytest.fixture(scope="module")
def nets(client: Client) -> RepositoryClient:
    client.create_repository("team/nets")
    return client.repository("team/nets")


def _commit(service: RunningService, branch: str, name: str, *, new: bool = False) -> None:
    repo = tr.open(
        f"{service.url}/team/nets",
        author="Ann <ann@example.org>",
        storage_options={"token": service.token},
    )
    if new:
        repo.create_branch(branch, "main")
    with repo.transaction(branch, message=name) as tx:
        tx.save_file(name, b"words")
    repo.close()


def test_an_account_is_made_changed_and_removed(service: RunningService, client: Client) -> None:
    accounts = client.accounts
    made = accounts.create_user("ann", email="ann@example.org", password="correct horse battery")
    assert (made.name, made.has_password, made.is_disabled) == ("ann", True, False)
    with pytest.raises(ConflictError):
        accounts.create_user("ann")
    assert accounts.change_user("ann", is_disabled=True).is_disabled
    assert accounts.change_user("ann", is_disabled=False).email == "ann@example.org"
    accounts.set_password("ann", "another horse battery")
    accounts.end_sessions("ann")
    assert "ann" in [one.name for one in accounts.users()]
    assert accounts.me().is_operator
    accounts.remove_user("ann")
    with pytest.raises(NotFoundError):
        accounts.user("ann")
    assert service.token


def test_a_group_is_granted_what_its_members_may(
    service: RunningService, client: Client, nets: RepositoryClient
) -> None:
    accounts = client.accounts
    accounts.create_user("bea")
    accounts.create_group("vision", description="Eyes")
    assert accounts.add_member("vision", "bea").members == ["bea"]
    token = service.service.accounts.add_token("bea", "hers")
    with Client(service.url, token=token) as hers:
        with pytest.raises(PermissionDenied):
            hers.repository("team/nets").info()
        nets.grants.set("vision", "write", refs="heads/dev/*", kind="group")
        assert hers.accounts.me().groups == ["vision"]
        assert hers.repository("team/nets").info().may == "write"
        with pytest.raises(PermissionDenied):
            list(hers.accounts.users())
        told = [(one.kind, one.holder, one.action, one.refs) for one in nets.grants.all()]
        assert ("group", "vision", "write", "heads/dev/*") in told
        nets.grants.remove("vision", refs="heads/dev/*", kind="group")
        accounts.grant("team/*", "bea", "read")
        assert hers.repository("team/nets").info().may == "read"
        accounts.take_back("team/*", "bea")
        with pytest.raises(PermissionDenied):
            hers.repository("team/nets").info()
    assert [one.holder for one in accounts.grants() if one.holder == "bea"] == []
    assert accounts.remove_member("vision", "bea").members == []
    assert accounts.group("vision").description == "Eyes"
    accounts.remove_group("vision")
    assert list(accounts.groups()) == []


def test_a_webhook_tells_its_secret_once_and_what_was_delivered(nets: RepositoryClient) -> None:
    hook = nets.webhooks.add("http://127.0.0.1:9/hook", events=["branch.*"])
    assert hook.secret is not None
    assert hook.secret not in repr(hook)
    assert nets.webhooks.get(hook.id).secret is None
    assert nets.webhooks.change(hook.id, events=["version.registered"]).events == [
        "version.registered"
    ]
    ping = nets.webhooks.ping(hook.id)
    again = nets.webhooks.redeliver(hook.id, ping.id)
    assert {one.id for one in nets.webhooks.deliveries(hook.id)} == {ping.id, again.id}
    assert not nets.webhooks.change(hook.id, active=False).active
    nets.webhooks.remove(hook.id)
    assert list(nets.webhooks.all()) == []


@pytest.mark.soak
def test_a_request_is_proposed_talked_about_and_merged(
    service: RunningService, client: Client, nets: RepositoryClient
) -> None:
    _commit(service, "main", "first")
    _commit(service, "wider", "second", new=True)
    requests = nets.merge_requests
    proposed = requests.propose("wider", title="Wider")
    assert proposed.head is not None
    assert [one.path for one in requests.changes(proposed.number)] == ["files/second"]
    assert requests.describe(proposed.number, text="More of it").text == "More of it"
    said = requests.comment(proposed.number, "why?", path="files/second").comments
    assert said[0]["path"] == "files/second"
    with pytest.raises(PermissionDenied, match="nobody reviews what they propose"):
        requests.review(proposed.number, "approve", commit=proposed.head)
    client.accounts.create_user("rea")
    nets.grants.set("rea", "write")
    with Client(service.url, token=service.service.accounts.add_token("rea", "hers")) as hers:
        theirs = hers.repository("team/nets").merge_requests
        seen = theirs.review(proposed.number, "approve", commit=proposed.head)
    assert (seen.reviews[0]["verdict"], seen.reviews[0]["current"]) == ("approve", True)
    checked = requests.report_check(proposed.number, "fast", "passed", commit=proposed.head)
    assert checked.checks[0]["state"] == "passed"
    _commit(service, "wider", "third")
    newer = requests.update(proposed.number)
    assert (newer.head != proposed.head, newer.reviews[0]["current"]) == (True, False)
    with pytest.raises(ConflictError):
        requests.merge(proposed.number, head=proposed.head)
    assert requests.close(proposed.number).state == "closed"
    assert requests.reopen(proposed.number).state == "open"
    assert requests.mergeable(proposed.number).ready
    merged = requests.merge(proposed.number, head=newer.head)
    assert (merged.state, merged.merged_as is not None) == ("merged", True)
    assert [one.number for one in requests.all(state="merged")] == [proposed.number]
    assert requests.get(proposed.number).title == "Wider"
