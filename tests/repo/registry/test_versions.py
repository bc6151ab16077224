"""Versions of registered models are numbered once, aliases move with a history, all in the log."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import msgspec
import pytest

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogEntry, LogRecord, Update
from tensorrepo.repo.names import MAX_REF_BYTES
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.registry import versions as registering
from tensorrepo.repo.registry.cards import (
    Card,
    CardText,
    card_at,
    decode_card,
    described,
    edit_card,
)
from tensorrepo.repo.registry.versions import (
    RegisteredVersion,
    Shelf,
    alias_history,
    delete_alias,
    delete_registered,
    delete_version,
    find_version,
    protect_alias,
    registered,
    set_alias,
    versions,
)
from tests.support.builders.log import encode_record
from tests.support.builders.repositories import ADA, BOB, again, commit_files, new_repository

MODELS = Shelf(Kind.MODEL, "model", "models/")
register = partial(registering.register, shelf=MODELS)


def commit_model(repository: RepositoryCore, content: bytes) -> Digest:
    """A commit of what passes for a model: to this layer it is a kind and bytes."""
    with begin(repository, "main") as transaction:
        link = transaction.objects.put(Kind.MODEL, content)
        transaction.stage("models/net", Entry(Kind.MODEL, link.digest))
        made = transaction.commit("train", author=ADA)
    assert made is not None
    return made.digest


def with_versions(count: int) -> RepositoryCore:
    repository = new_repository()
    for number in range(count):
        source = commit_model(repository, b"weights %d" % number)
        register(repository, "team/net", source, "models/net", author=ADA)
    return repository


def numbers(repository: RepositoryCore) -> list[int]:
    return [version.number for version in versions(again(repository), "team/net")]


def test_versions_are_numbered_from_one() -> None:
    assert numbers(with_versions(3)) == [3, 2, 1]


def test_a_version_tells_where_it_was_taken_from() -> None:
    repository = new_repository()
    source = commit_model(repository, b"weights")
    made = register(repository, "net", source, "models/net", author=BOB, clock=lambda: 7)
    assert find_version(again(repository), "net") == made
    assert (made.source, made.source_path, made.author, made.time_ns) == (
        source, "models/net", BOB, 7,
    )  # fmt: skip


def test_a_version_holds_the_model_alone() -> None:
    repository = with_versions(1)
    commit_files(repository, {"files/other": b"other"})
    version = find_version(repository, "team/net")
    tree = read_commit(repository.objects, version.commit).tree
    assert [path for path, _ in repository.entries(tree)] == ["models/team/net"]


def test_only_models_are_registered() -> None:
    repository = new_repository()
    made = commit_files(repository, {"models/net": b"a file"})
    with pytest.raises(InvalidInputError, match="versions are of models"):
        register(repository, "net", made.digest, "models/net", author=ADA)
    with pytest.raises(NotFoundError, match="nothing was registered"):
        register(repository, "net", made.digest, "models/other", author=ADA)


@pytest.mark.parametrize("name", ["", "a/../b", "-x", "a b", "nul", "a//b", "../../repo.json"])
def test_a_name_that_breaks_the_grammar_is_refused(name: str) -> None:
    repository = new_repository()
    source = commit_model(repository, b"weights")
    with pytest.raises(InvalidInputError):
        register(repository, name, source, "models/net", author=ADA)


def test_a_name_in_a_folder_that_may_be_a_description_is_refused() -> None:
    """What is said about `a` would lie where the folder has to be, and could not be forgotten."""
    repository = new_repository()
    source = commit_model(repository, b"weights")
    with pytest.raises(InvalidInputError, match=r"folder 'a\.json' .* describes 'a'"):
        register(repository, "team/a.json/b", source, "models/net", author=ADA)
    assert register(repository, "team/a.json", source, "models/net", author=ADA).number == 1
    assert delete_registered(repository, "team/a.json", actor=ADA) == 1


def test_who_registers_at_once_gets_different_numbers() -> None:
    repository = new_repository()
    source = commit_model(repository, b"weights")
    made: list[RegisteredVersion] = []

    def one() -> None:
        made.append(register(again(repository), "net", source, "models/net", author=ADA))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version.number for version in made) == list(range(1, 9))
    assert len({version.commit for version in made}) == 8


def test_an_alias_moves_and_its_history_is_kept() -> None:
    repository = with_versions(2)
    assert set_alias(repository, "team/net", "champion", 1, actor=ADA) == 1
    assert set_alias(repository, "team/net", "champion", "2", actor=BOB) == 2
    delete_alias(repository, "team/net", "champion", actor=ADA)
    moves = list(alias_history(again(repository), "team/net", "champion"))
    assert [(move.entry.actor, number) for move, number in moves] == [(ADA, 0), (BOB, 2), (ADA, 1)]


def test_an_alias_names_a_version_wherever_a_number_does() -> None:
    repository = with_versions(2)
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    set_alias(repository, "team/net", "fallback", "champion", actor=ADA)
    assert find_version(repository, "team/net", "fallback").number == 1
    assert find_version(repository, "team/net", 1).aliases == ("champion", "fallback")


def test_an_alias_that_stays_writes_nothing() -> None:
    repository = with_versions(1)
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    before = repository.log.refresh().generation
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    assert repository.log.refresh().generation == before


def test_a_new_version_takes_an_alias_in_its_own_record() -> None:
    repository = with_versions(1)
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    before = repository.log.refresh().generation
    source = find_version(repository, "team/net", 1).source
    made = register(
        repository, "team/net", source, "models/net", author=ADA, alias="champion"
    )  # fmt: skip
    assert repository.log.refresh().generation == before + 1
    assert find_version(again(repository), "team/net", "champion") == made


def test_a_protected_alias_neither_moves_nor_goes() -> None:
    repository = with_versions(2)
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    protect_alias(repository, "team/net", "champion", actor=ADA)
    source = find_version(repository, "team/net", 1).source
    with pytest.raises(ConflictError, match="protected"):
        set_alias(repository, "team/net", "champion", 2, actor=ADA)
    with pytest.raises(ConflictError, match="protected"):
        delete_alias(repository, "team/net", "champion", actor=ADA)
    with pytest.raises(ConflictError, match="protected"):
        register(repository, "team/net", source, "models/net", author=ADA, alias="champion")
    assert numbers(repository) == [2, 1]
    protect_alias(repository, "team/net", "champion", actor=ADA, on=False)
    assert set_alias(repository, "team/net", "champion", 2, actor=ADA) == 2


@pytest.mark.parametrize("alias", ["", "7", "a/b", "-x", "..", "a b", "x."])
def test_what_cannot_be_an_alias_is_refused(alias: str) -> None:
    with pytest.raises(InvalidInputError):
        set_alias(with_versions(1), "team/net", alias, 1, actor=ADA)


def test_a_number_is_given_once() -> None:
    repository = with_versions(3)
    source = find_version(repository, "team/net", 1).source
    delete_version(repository, "team/net", 3, actor=ADA)
    delete_version(repository, "team/net", 1, actor=ADA)
    register(repository, "team/net", source, "models/net", author=ADA)
    assert numbers(repository) == [4, 2]


def test_a_version_with_an_alias_is_not_deleted() -> None:
    repository = with_versions(1)
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    with pytest.raises(ConflictError, match="has the alias 'champion'"):
        delete_version(repository, "team/net", 1, actor=ADA)
    assert numbers(repository) == [1]


def test_a_model_goes_whole_and_its_numbers_stay_given() -> None:
    repository = with_versions(2)
    source = find_version(repository, "team/net", 1).source
    set_alias(repository, "team/net", "champion", 1, actor=ADA)
    assert delete_registered(repository, "team/net", actor=ADA) == 2
    assert registered(again(repository).log.refresh()) == {}
    assert register(repository, "team/net", source, "models/net", author=ADA).number == 3


def test_a_version_registered_while_its_model_goes_stays_and_has_its_own_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = with_versions(2)
    source = find_version(repository, "team/net", 1).source

    def noted(*args: Any, **options: Any) -> Card:
        made = edit_card(*args, **options)
        register(again(repository), "team/net", source, "models/net", author=BOB, alias="new")
        return made

    monkeypatch.setattr(registering, "edit_card", noted)
    assert delete_registered(repository, "team/net", actor=ADA) == 2
    assert numbers(repository) == [3]
    assert find_version(again(repository), "team/net", "new").number == 3
    assert register(repository, "team/net", source, "models/net", author=ADA).number == 4


def test_an_alias_that_moves_to_a_version_which_goes_goes_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = with_versions(2)

    def noted(*args: Any, **options: Any) -> Card:
        set_alias(again(repository), "team/net", "late", 2, actor=BOB)
        return edit_card(*args, **options)

    monkeypatch.setattr(registering, "edit_card", noted)
    assert delete_registered(repository, "team/net", actor=ADA) == 2
    assert registered(again(repository).log.refresh()) == {}


def test_versions_of_a_long_name_go_in_as_many_records_as_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository, name = new_repository(), "/".join(200 * letter for letter in "wxyz")
    source = commit_model(repository, b"weights")
    for _ in range(5):
        register(repository, name, source, "models/net", author=ADA)
    before = repository.log.refresh().generation
    monkeypatch.setattr(registering, "MOST_AT_ONCE", 2000)
    assert delete_registered(repository, name, actor=ADA) == 5
    assert registered(again(repository).log.refresh()) == {}
    assert repository.log.refresh().generation == before + 1 + 3  # the note, and two refs in each


def test_as_many_updates_of_the_longest_refs_as_are_taken_fit_a_record() -> None:
    ref = "registry/" + "x" * (MAX_REF_BYTES - 9)
    updates = registering._that_fit([Update(ref, Digest("0" * 64), None)] * 1000)
    entry = LogEntry("0" * 32, "ref-delete", ADA, 2**63 - 1, "", tuple(updates))
    assert len(encode_record(LogRecord(64, Digest("0" * 64), Digest("0" * 64), (entry,)))) > 40000


@pytest.mark.parametrize("which", [1.5, b"1", [1]])
def test_what_can_be_no_version_is_refused(which: Any) -> None:
    with pytest.raises(InvalidInputError, match="a version is a whole number"):
        find_version(with_versions(1), "team/net", which)


def test_a_number_of_very_many_digits_is_no_version() -> None:
    with pytest.raises(NotFoundError, match="has no version 999"):
        find_version(with_versions(1), "team/net", "9" * 5000)


def test_an_alias_that_is_no_text_is_refused() -> None:
    repository = with_versions(1)
    alias: Any = 3
    with pytest.raises(InvalidInputError, match="alias 3 cannot be used"):
        set_alias(repository, "team/net", alias, 1, actor=ADA)


def test_what_is_missing_is_named_with_what_there_is() -> None:
    repository = with_versions(2)
    with pytest.raises(NotFoundError, match="Did you mean team/net"):
        find_version(repository, "team/ne")
    with pytest.raises(NotFoundError, match="has no version 9; there are 1, 2"):
        find_version(repository, "team/net", 9)
    with pytest.raises(NotFoundError, match="has no version 2; there is only 1"):
        find_version(with_versions(1), "team/net", 2)
    with pytest.raises(NotFoundError, match="has no alias 'x'; it has none"):
        find_version(repository, "team/net", "x")


def test_a_ref_that_register_did_not_make_is_said_to_be_none() -> None:
    repository = new_repository()
    with begin(repository, "net/v/1", space="registry/") as transaction:
        link = transaction.objects.put(Kind.MODEL, b"weights")
        transaction.stage("models/net", Entry(Kind.MODEL, link.digest))
        transaction.commit("by hand", author=ADA)
    with pytest.raises(CorruptError, match="not made by `register`"):
        find_version(repository, "net", 1)


def say(repository: RepositoryCore, text: str) -> Card:
    words = CardText(text, {"task": "digits"})
    return edit_card(
        repository, "net", lambda about: msgspec.structs.replace(about, entry=words), author=ADA
    )


def test_what_is_said_about_a_model_is_a_file_of_a_branch() -> None:
    repository = new_repository()
    said = say(repository, "Reads digits.")
    view = again(repository).log.refresh()
    assert card_at(repository, view, "net") == said
    assert dict(described(repository, view.state.refs["heads/meta/registry"])) == {"net": said}


def test_two_who_describe_at_once_both_have_their_say() -> None:
    repository = new_repository()
    say(repository, "first")

    def label(name: str) -> None:
        def change(about: Card) -> Card:
            words = about.entry.with_changes(None, {name: "yes"})
            return msgspec.structs.replace(about, entry=words)

        edit_card(again(repository), "net", change, author=ADA)

    threads = [threading.Thread(target=label, args=(f"label-{at}",)) for at in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    view = repository.log.refresh()
    assert [
        len(said.entry.labels)
        for _, said in described(repository, view.state.refs["heads/meta/registry"])
    ] == [6]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version": 0}',
        b'{"model": {"description": 3}}',
        b'{"more": 1}',
        b'{"model": {"description": "a\\u202eb"}}',
    ],
)
def test_a_file_that_says_nothing_understandable_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="here: "):
        decode_card(data, "here")


def test_text_that_deceives_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not printable"):
        say(new_repository(), "a\u202eb")
