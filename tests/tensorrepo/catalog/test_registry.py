"""Models are registered, named and found again, from the SDK and from the shell."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repository import Repository
from tensorrepo.sdk import init
from tests.support.builders.models import stored
from tests.support.processes.shell import Shell

ADA = "Ada <ada@example.org>"


@pytest.fixture
def repository(request: pytest.FixtureRequest) -> Repository:
    """A repository whose branch main has two commits of models/net: full of 1, then of 2."""
    made = init(f"memory://registry-{abs(hash(request.node.nodeid))}", author=ADA)
    for value in (1, 2):
        with made.transaction(message=f"train {value}") as tx:
            tx.save_model("net", {"w": np.full(8, value, "f4")})
    return made


def test_a_registered_version_is_loaded_by_number_and_by_alias(repository: Repository) -> None:
    registry = repository.registry
    registry.register("classifier", "main~1:models/net", message="the first")
    registry.register("classifier", repository.model("net"), alias="champion")
    assert registry.model("classifier", 1)["w"][:].tolist() == [1] * 8
    assert registry.model("classifier", "champion")["w"][:].tolist() == [2] * 8
    assert registry.model("classifier").path == "models/classifier"
    assert [version.number for version in registry.versions("classifier")] == [2, 1]


def test_a_version_outlives_its_branch(repository: Repository) -> None:
    repository.create_branch("side")
    repository.registry.register("classifier", "side:models/net")
    repository.delete_branch("side")
    assert repository.registry.model("classifier", 1)["w"][:].tolist() == [2] * 8


def test_a_model_may_be_described_before_it_has_a_version(repository: Repository) -> None:
    registry = repository.registry
    registry.create("classifier", description="Reads digits.", labels={"task": "vision"})
    assert registry.get("classifier").latest is None
    registry.register("classifier", "main:models/net")
    registry.describe("classifier", labels={"task": None, "owner": "Ada"})
    registry.describe("classifier", 1, description="good")
    found = registry.get("classifier")
    assert (found.description, found.labels, found.versions) == (
        "Reads digits.", {"owner": "Ada"}, (1,),
    )  # fmt: skip
    assert registry.words("classifier", 1).description == "good"
    assert list(registry) == ["classifier"]


def test_the_history_of_an_alias_tells_who_moved_it(repository: Repository) -> None:
    registry = repository.registry
    registry.register("classifier", "main~1:models/net", alias="champion")
    registry.register("classifier", "main:models/net")
    registry.alias("classifier", "champion", 2)
    moves = registry.history("classifier", "champion")
    assert [(move.version, move.actor) for move in moves] == [(2, ADA), (1, ADA)]


def test_a_protected_alias_is_shown_and_refuses(repository: Repository) -> None:
    registry = repository.registry
    registry.register("classifier", "main:models/net", alias="champion")
    registry.protect("classifier", "champion")
    assert registry.get("classifier").protected == ("champion",)
    with pytest.raises(ConflictError, match="protect classifier champion --off"):
        registry.delete_alias("classifier", "champion")
    with pytest.raises(ConflictError, match="protect classifier champion --off"):
        registry.delete("classifier")


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("net", InvalidInputError, "expected REF:models/NAME"),
        ("main:models/other", NotFoundError, "nothing was registered"),
        ("nowhere:models/net", NotFoundError, "nothing was registered"),
    ],
)
def test_a_source_that_names_no_model_is_refused(
    repository: Repository, source: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        repository.registry.register("classifier", source)


def test_a_model_that_only_has_a_description_goes_as_others_do(repository: Repository) -> None:
    registry = repository.registry
    registry.create("empty")
    assert registry.delete("empty") == 0
    registry.register("full", "main:models/net")
    registry.describe("full", description="good")
    assert registry.delete("full") == 1
    assert list(registry) == []
    with pytest.raises(NotFoundError):
        registry.get("full")
    assert registry.register("full", "main:models/net").number == 2


def test_only_what_is_there_is_described_or_has_a_history(repository: Repository) -> None:
    registry = repository.registry
    with pytest.raises(NotFoundError, match="nothing is registered as 'zip'"):
        registry.describe("zip", description="what?")
    registry.register("net", "main:models/net")
    with pytest.raises(NotFoundError, match="never had an alias 'nope'"):
        registry.history("net", "nope")


def test_what_is_not_registered_is_not_found(repository: Repository) -> None:
    with pytest.raises(NotFoundError, match="nothing is registered as 'other'"):
        repository.registry.get("other")


@pytest.fixture
def shelf(shell: Shell) -> Shell:
    """A workspace with one committed model, net."""
    write_safetensors(stored({"w": np.ones(8, "f4")}), shell.folder / "net.safetensors")
    shell("model", "add", "net.safetensors", "net")
    shell("commit", "-m", "Net")
    return shell


def test_the_shell_registers_names_and_shows(shelf: Shell) -> None:
    assert "is version 1 of net" in shelf("registry", "register", "net")
    told = shelf.json("registry", "register", "main:net", "--as", "team/net", "--alias", "best")
    assert (told["version"], told["aliases"], told["source_path"]) == (1, ["best"], "models/net")
    assert [one["model"] for one in shelf.records("registry", "ls")] == ["net", "team/net"]
    assert "best=1" in shelf("registry", "ls")
    assert "best" in shelf("registry", "show", "team/net", "best")
    assert "best of team/net is version 1" in shelf("registry", "alias", "team/net", "best")
    assert "Removed alias best" in shelf("registry", "alias", "team/net", "best", "-d")
    assert [one["version"] for one in shelf.records("registry", "history", "team/net", "best")] == [
        None, 1,
    ]  # fmt: skip


def test_the_shell_describes_protects_and_removes(shelf: Shell) -> None:
    shelf("registry", "create", "net", "--description", "Reads digits.", "--label", "task=vision")
    shelf("registry", "register", "net", "--alias", "best")
    assert "task: vision" in shelf("registry", "show", "net")
    shelf("registry", "describe", "net", "--label", "task=")
    assert "task" not in shelf("registry", "show", "net")
    shelf("registry", "protect", "net", "best")
    assert "--off" in shelf.fails(4, "registry", "alias", "net", "best", "-d")
    shelf("registry", "protect", "net", "best", "--off")
    assert "has the alias" in shelf.fails(4, "registry", "rm", "net", "1")
    assert "--force" in shelf.fails(4, "registry", "rm", "net")
    assert "which had 1 version." in shelf("registry", "rm", "net", "--force")


@pytest.mark.parametrize(
    ("exit_code", "words", "says"),
    [
        (3, ("show", "other"), "nothing is registered as 'other'"),
        (3, ("register", "other"), "no entry"),
        (3, ("alias", "net", "best"), "no alias 'best'"),
        (2, ("describe", "net"), "give --description"),
        (2, ("describe", "net", "--label", "x"), "expected NAME=TEXT"),
        (2, ("alias", "net", "1", "1"), "is no number"),
        (3, ("rm", "net", "7"), "has no version 7"),
        (3, ("rm", "net", "", "--force"), "no alias ''"),
        (3, ("show", "net", ""), "no alias ''"),
        (3, ("alias", "net", "best", ""), "no alias ''"),
        (2, ("alias", "net", "best", "", "-d"), "-d without VERSION"),
    ],
)
def test_the_shell_says_what_is_wrong(
    shelf: Shell, exit_code: int, words: tuple[str, ...], says: str
) -> None:
    shelf("registry", "register", "net")
    assert says in shelf.fails(exit_code, "registry", *words)
