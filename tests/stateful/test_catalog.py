"""The catalog says what the repository says, whatever happened between two catch-ups."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorrepo import connect
from tensorrepo.context import Context, RepositoryOrigin
from tensorrepo.models.checkpointer import RetentionPolicy
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.errors import Error
from tensorrepo.repository import Repository
from tests.stateful.test_repository import RepositoryMachine
from tests.support.builders.repositories import ADA, new_repository
from tests.support.effort import examples
from tests.support.reference import collector
from tests.support.servers.catalogs import catalog_at, catalog_url, fresh_rows, rows_of

MODELS = st.sampled_from(["models/a", "models/b"])
DATASETS = st.sampled_from(["datasets/a", "datasets/b"])
BRANCHES = st.sampled_from(["main", "main", "dev"])
STEPS = st.integers(0, 5)


class CatalogMixin:
    """A catalog beside the repository, in the database called `database`."""

    database = "sqlite"

    def open_catalog(self) -> None:
        self.stack = ExitStack()
        if self.database == "sqlite":
            url = "sqlite://"
        else:
            url = self.stack.enter_context(catalog_url(self.database, Path()))
        self.catalog = self.stack.enter_context(catalog_at(url))


class HistoryMachine(CatalogMixin, RepositoryMachine):
    """What the repository's own machine does, and now and then a catch-up."""

    def backend(self) -> Backend:
        self.open_catalog()
        return MemoryBackend()

    @rule()
    def catch_up(self) -> None:
        catch_up(self.repository, self.catalog)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "catalog"):
            catch_up(self.repository, self.catalog)
            assert rows_of(self.catalog) == fresh_rows(self.repository)
            self.stack.close()


class ContentMachine(CatalogMixin, RuleBasedStateMachine):
    """Datasets, models and checkpoints come, share, are stored anew and go."""

    @initialize()
    def make(self) -> None:
        self.open_catalog()
        self.folder = self.stack.enter_context(TemporaryDirectory())
        core = new_repository(MemoryBackend())
        machine = connect.Machine({}, Path(self.folder), Path(self.folder))
        origin = RepositoryOrigin("memory://", author=ADA)
        context = Context(core, origin, machine, lambda _: context)
        self.repo = Repository(context)
        self.condemned: list[str] = []
        self.save("main", "models/a", 0)

    @rule(branch=BRANCHES, path=MODELS, step=STEPS)
    def save(self, branch: str, path: str, step: int) -> None:
        weights = np.arange(600, dtype="f4").reshape(20, 30) + np.float32(step)
        with self.repo.transaction(branch, f"save {path} {step}") as change:
            change.save_model(
                path.removeprefix("models/"),
                {"w": weights, "fc.bias": np.zeros(4, "f4")},
                metrics={"loss": step / 2},
            )

    @rule(branch=BRANCHES, path=DATASETS, step=STEPS)
    def write(self, branch: str, path: str, step: int) -> None:
        with self.repo.transaction(branch, f"write {path}") as change:
            name = path.removeprefix("datasets/")
            if change.core.entry(path) is None:
                change.create_dataset(name, columns={"x": "int64", "y": "float32"})
            change.dataset(name).append([{"x": step, "y": step / 3}])

    @rule(run=st.sampled_from(["r", "s"]), step=STEPS)
    def checkpoint(self, run: str, step: int) -> None:
        """Each goes when two newer ones are there: nothing has what it held then."""
        saver = self.repo.checkpointer(run, keep=RetentionPolicy(last=2))
        saver.save(step, {"w": np.full((8, 8), step, "f4")})
        saver.close()

    @rule(branch=BRANCHES, path=DATASETS, step=STEPS)
    def view(self, branch: str, path: str, step: int) -> None:
        """Views of what other branches hold by now, too."""
        name = path.removeprefix("datasets/")
        self.attempt(lambda: self._view(branch, name, step))

    def _view(self, branch: str, name: str, step: int) -> None:
        with self.repo.transaction(branch, f"view {name}") as change:
            change.create_view(name, f"SELECT row_id FROM {name} WHERE x < {step}")

    @rule(path=MODELS, alias=st.sampled_from([None, "best"]), step=STEPS)
    def register(self, path: str, alias: str | None, step: int) -> None:
        registry = self.repo.registry
        self.attempt(lambda: registry.register("m", f"main:{path}", alias=alias))
        self.attempt(lambda: registry.describe("m", step, description=f"{step}"))

    @rule(number=STEPS, alias=st.booleans())
    def forget(self, number: int, *, alias: bool) -> None:
        registry = self.repo.registry
        self.attempt(lambda: registry.delete_version("m", number))
        self.attempt(lambda: registry.delete_alias("m", "best") if alias else None)

    @rule(name=st.sampled_from(["r", "t"]), loss=st.sampled_from([0.5, float("nan")]))
    def run(self, name: str, loss: float) -> None:
        with self.repo.run(name, params={"rate": 0.1}, resume=True) as run:
            run.log_metric("loss", loss, 0)

    @rule(branch=BRANCHES)
    def undo(self, branch: str) -> None:
        self.attempt(lambda: self.repo.undo(branch))

    @precondition(lambda self: "dev" in self.repo.branches())
    @rule()
    def delete_branch(self) -> None:
        refs.delete_ref(self.repo.context.core, "heads/dev", actor=ADA)

    @precondition(lambda self: "dev" in self.repo.branches())
    @rule()
    def merge(self) -> None:
        self.attempt(lambda: self.repo.merge("dev", strategy="theirs"))

    @rule(depth=st.integers(0, 2))
    def repack(self, depth: int) -> None:
        self.attempt(lambda: self.repo.repack_models(depth=depth, alpha=50.0))

    @rule(release=st.booleans())
    def collect(self, *, release: bool) -> None:
        core = self.repo.context.core
        self.condemned += collector.collect_late(core.backend, release=release)
        collector.delete(core, self.condemned)

    @rule()
    def catch_up(self) -> None:
        catch_up(self.repo.context.core, self.catalog)

    @invariant()
    def nothing_of_what_was_caught_up_with_is_left_out(self) -> None:
        if hasattr(self, "repo"):
            view = self.repo.context.core.log.refresh()
            assert view.generation > 0

    def attempt(self, act: Any) -> None:
        """Do what may be refused; tests of its own say when."""
        try:
            act()
        except Error:
            return

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            catch_up(self.repo.context.core, self.catalog)
            assert rows_of(self.catalog) == fresh_rows(self.repo.context.core)
            self.stack.close()


class HistoryInPostgres(HistoryMachine):
    database = "postgresql"


class ContentInPostgres(ContentMachine):
    database = "postgresql"


TestHistory = pytest.mark.timeout(120)(HistoryMachine.TestCase)
TestHistory.settings = settings(max_examples=examples(2))
TestContent = pytest.mark.timeout(120)(ContentMachine.TestCase)
TestContent.settings = settings(max_examples=examples(2))
TestHistoryInPostgres = pytest.mark.soak(HistoryInPostgres.TestCase)
TestHistoryInPostgres.settings = settings(max_examples=examples(1))
TestContentInPostgres = pytest.mark.soak(ContentInPostgres.TestCase)
TestContentInPostgres.settings = settings(max_examples=examples(1))
