"""A repository does what dicts do, whatever is done to it and in whatever order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import CommitTransaction, LandedCommit, begin, tree_of
from tensorrepo.repo.errors import CommitExpired, ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import lookup
from tensorrepo.repo.ids import Digest
from tests.support.builders.repositories import ADA, BOB, files_at, new_repository, stage_files
from tests.support.effort import examples
from tests.support.reference import collector
from tests.support.reference.repository import (
    Files,
    Made,
    Model,
    RefusedError,
    Step,
    broken,
    changed,
    three_way,
)
from tests.support.second_readers.tree import clashing

# Few names, so that things meet; "fix" is a folder of "fix/a", and paths clash in three ways.
BRANCHES = st.sampled_from(["main", "dev", "fix", "fix/a"])
MOSTLY_MAIN = st.sampled_from(["main", "main", "dev", "main", "dev", "fix", "fix/a"])
TAGS = st.sampled_from(["v1", "v2"])
PATHS = st.sampled_from(["files/a", "files/b", "models/m", "files/d/y"]) | st.sampled_from(
    ["files/a", "files/b", "files/B", "files/c", "files/c/x"]
)
# Often a content that nothing else has: what a collector may take from under a transaction.
CONTENTS = st.none() | st.integers(0, 40).map(lambda n: b"%d" % n)
CHANGES = st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=3)
ACTORS = st.sampled_from([ADA, BOB])
PICK = st.integers(0, 1000)
MESSAGES = st.sampled_from(["change", "undo 2", "redo 3"])  # two that read like what they are not
STRATEGIES = st.sampled_from(["fail", "ours", "theirs"])
OPEN_TRANSACTIONS = 3


@dataclass
class Begun:
    """A transaction that waits to be committed, and what the model must know of it."""

    transaction: CommitTransaction
    base: Digest | None
    changes: dict[str, bytes | None]
    unchanged: list[str]
    source: Digest | None = None  # the commit that it borrowed from


class RepositoryMachine(RuleBasedStateMachine):
    """Every rule does something to the repository and to the model, and compares."""

    def backend(self) -> Backend:
        raise NotImplementedError

    @initialize()
    def make(self) -> None:
        self.store = self.backend()
        self.repository = new_repository(self.store)
        self.model = Model()
        self.begun: list[Begun] = []
        self.condemned: list[str] = []
        self.now = 0
        for branch in ("main", "dev", "main"):
            files: dict[str, bytes | None] = {f"files/{branch[0]}": b"%d" % len(self.model.commits)}
            self._finish(self._begin(branch, files, []), ADA)

    # ---- commits

    @rule(branch=MOSTLY_MAIN, changes=CHANGES, actor=ACTORS, message=MESSAGES)
    def commit(
        self, branch: str, changes: dict[str, bytes | None], actor: str, message: str
    ) -> None:
        self._finish(self._begin(branch, changes, []), actor, message)

    @rule(ours=CHANGES, theirs=CHANGES, strategy=STRATEGIES)
    def part_and_merge(
        self, ours: dict[str, bytes | None], theirs: dict[str, bytes | None], strategy: str
    ) -> None:
        """What takes several steps that chance seldom puts behind each other."""
        self._finish(self._begin("main", ours, []), ADA)
        self._finish(self._begin("dev", theirs, []), BOB)
        if "heads/dev" in self.model.refs:
            at = self._kept().index(self.model.refs["heads/dev"])
            self.merge("main", at, strategy, ADA, forward=False)

    @rule(changes=CHANGES, unchanged=st.lists(PATHS, max_size=1))
    def commit_on_what_is_undone(
        self, changes: dict[str, bytes | None], unchanged: list[str]
    ) -> None:
        begun = self._begin("main", changes, unchanged)
        self.undo("main", ADA, own=True)
        self._finish(begun, BOB)

    @precondition(lambda self: len(self.begun) < OPEN_TRANSACTIONS)
    @rule(branch=MOSTLY_MAIN, changes=CHANGES, unchanged=st.lists(PATHS, max_size=1))
    def begin(self, branch: str, changes: dict[str, bytes | None], unchanged: list[str]) -> None:
        self.begun.append(self._begin(branch, changes, unchanged))

    @precondition(lambda self: len(self.begun) < OPEN_TRANSACTIONS and self._kept())
    @rule(branch=MOSTLY_MAIN, at=PICK, which=PICK)
    def borrow(self, branch: str, at: int, which: int) -> None:
        """Begin a transaction with a file as another commit has it, by its digest alone."""
        commit = self._pick(at)
        files = sorted(self.model.files(commit).items())
        path, content = files[which % len(files)] if files else ("files/a", None)
        begun = self._begin(branch, {}, [])
        begun.changes[path] = content
        begun.source = commit
        entry = lookup(self.repository.objects, tree_of(self.repository.objects, commit), path)
        if entry is None:
            begun.transaction.remove(path)
        else:
            begun.transaction.stage(path, entry)
        self.begun.append(begun)

    @precondition(lambda self: self.begun)
    @rule(at=PICK, actor=ACTORS)
    def finish(self, at: int, actor: str) -> None:
        self._finish(self.begun.pop(at % len(self.begun)), actor)

    @precondition(lambda self: self.begun)
    @rule(at=PICK)
    def abandon(self, at: int) -> None:
        self.begun.pop(at % len(self.begun)).transaction.abort()

    def _begin(self, branch: str, changes: dict[str, bytes | None], unchanged: list[str]) -> Begun:
        transaction = begin(self.repository, branch, unchanged=unchanged)
        assert transaction.base == self.model.refs.get(f"heads/{branch}")
        stage_files(transaction, changes)
        return Begun(transaction, transaction.base, changes, unchanged)

    def _finish(self, begun: Begun, actor: str, message: str = "change") -> None:
        ref, model = begun.transaction.ref, self.model
        base = model.files(begun.base)
        mine = changed(base, begun.changes)
        if clashing(mine):
            with pytest.raises(InvalidInputError, match="rename or remove"):
                self._commit(begun, actor)
            return
        if mine == base:
            assert self._commit(begun, actor) is None
            return
        try:
            files = self._files_on_tip(begun, mine)
        except RefusedError:
            with pytest.raises((ConflictError, *self._expiry(begun))):
                self._commit(begun, actor)
            return
        try:
            made = self._commit(begun, actor, message)
        except CommitExpired:
            assert self._expiry(begun)
            return
        assert made is not None
        tip = model.refs.get(ref)
        assert made.commit.parents == (() if tip is None else (tip,))
        self._made(made.digest, files, made.commit.parents)
        model.move(ref, made.digest, actor)

    def _commit(self, begun: Begun, actor: str, message: str = "change") -> LandedCommit | None:
        return begun.transaction.commit(message, author=actor, clock=self._clock)

    def _clock(self) -> int:
        """Times decide nothing, but are in the names of commits: the same ones in every run."""
        self.now += 1
        return self.now

    def _files_on_tip(self, begun: Begun, mine: Files) -> Files:
        model, ref = self.model, begun.transaction.ref
        tip = model.refs.get(ref)
        if tip == begun.base:
            if tip is None and not model.can_create(ref):
                raise RefusedError("the branch clashes with another")
            return mine
        if tip is None:
            raise RefusedError("the branch was deleted")
        base, theirs = model.files(begun.base), model.files(tip)
        if broken(begun.unchanged, base, theirs):
            raise RefusedError("it relied on what changed")
        return three_way(base, mine, theirs)

    def _expiry(self, begun: Begun) -> tuple[type[Exception], ...]:
        """A commit may expire only when what it is made of was collected."""
        relied = {begun.base, begun.source}
        return (CommitExpired,) if relied & self.model.gone else ()

    def _made(self, digest: Digest, files: Files, parents: tuple[Digest, ...]) -> None:
        self.model.commits[digest] = Made(files, parents)
        assert files_at(self.repository, digest) == files

    @rule(changes=CHANGES, release=st.booleans())
    def commit_beside_a_collection(
        self, changes: dict[str, bytes | None], *, release: bool
    ) -> None:
        begun = self._begin("main", changes, [])
        self.collect(release=release, deletes=True)
        self._finish(begun, ADA)

    @precondition(lambda self: "heads/dev" in self.model.refs)
    @rule(which=PICK)
    def borrow_from_what_is_dropped(self, which: int) -> None:
        self.borrow("main", self._kept().index(self.model.refs["heads/dev"]), which)
        self.delete("heads/dev", ADA)
        self.collect(release=True, deletes=False)
        self._finish(self.begun.pop(), ADA)

    # ---- refs

    @precondition(lambda self: self._kept())
    @rule(name=BRANCHES, at=PICK, actor=ACTORS)
    def branch(self, name: str, at: int, actor: str) -> None:
        commit, ref = self._pick(at), f"heads/{name}"
        self._expect(
            self.model.can_create(ref),
            ConflictError,
            lambda: refs.create_branch(self.repository, name, commit, actor=actor),
            lambda: self.model.move(ref, commit, actor),
        )

    @precondition(lambda self: self._kept())
    @rule(name=TAGS, at=PICK, actor=ACTORS)
    def tag(self, name: str, at: int, actor: str) -> None:
        commit, ref = self._pick(at), f"tags/{name}"
        self._expect(
            self.model.can_create(ref),
            ConflictError,
            lambda: refs.create_tag(self.repository, name, commit, actor=actor),
            lambda: self.model.move(ref, commit, actor),
        )

    @rule(ref=BRANCHES.map("heads/{}".format) | TAGS.map("tags/{}".format), actor=ACTORS)
    def delete(self, ref: str, actor: str) -> None:
        self._expect(
            ref in self.model.refs,
            NotFoundError,
            lambda: refs.delete_ref(self.repository, ref, actor=actor),
            lambda: self.model.move(ref, None, actor, drops=True),
        )

    @rule(old=BRANCHES, new=BRANCHES, actor=ACTORS)
    def rename(self, old: str, new: str, actor: str) -> None:
        source, target = f"heads/{old}", f"heads/{new}"
        commit = self.model.refs.get(source)
        self._expect(
            commit is not None and self.model.can_create(target),
            (ConflictError, NotFoundError),
            lambda: refs.rename_branch(self.repository, old, new, actor=actor),
            lambda: self.model.rename(source, target, actor),
        )

    @precondition(lambda self: self._kept())
    @rule(name=MOSTLY_MAIN, at=PICK, actor=ACTORS)
    def reset(self, name: str, at: int, actor: str) -> None:
        commit, ref = self._pick(at), f"heads/{name}"
        self._expect(
            ref in self.model.refs,
            NotFoundError,
            lambda: refs.reset_branch(self.repository, name, commit, actor=actor, note="undo 1"),
            lambda: self.model.move(ref, commit, actor, drops=True),
        )

    @rule(name=MOSTLY_MAIN, actor=ACTORS, own=st.booleans())
    def undo(self, name: str, actor: str, *, own: bool) -> None:
        steps = self.model.done[f"heads/{name}"]
        owner = steps[-1].actor if steps else None
        actor = owner if own and owner else actor
        self._step(name, actor, owner, refs.undo, self.model.done, self.model.undone)

    @precondition(lambda self: any(self.model.undone.values()))
    @rule(name=MOSTLY_MAIN, actor=ACTORS, own=st.booleans())
    def redo(self, name: str, actor: str, *, own: bool) -> None:
        steps = self.model.undone[f"heads/{name}"]
        owner = steps[-1].undone_by if steps else None
        actor = owner if own and owner else actor
        self._step(name, actor, owner, refs.redo, self.model.undone, self.model.done)

    def _step(
        self,
        name: str,
        actor: str,
        owner: str | None,
        act: Callable[..., object],
        source: dict[str, list[Step]],
        target: dict[str, list[Step]],
    ) -> None:
        """Take the last step from one stack to the other."""
        ref, model = f"heads/{name}", self.model
        if owner is None:
            with pytest.raises(NotFoundError, match="nothing to"):
                act(self.repository, name, actor=actor)
            return
        places = self._places(ref, source)
        expiry = tuple(error for place in places.values() for error in self._step_expiry(place))
        creates = [each for each, place in places.items() if place and each not in model.refs]
        if owner != actor or not places or not all(model.can_create(each) for each in creates):
            with pytest.raises((ConflictError, *expiry)):
                act(self.repository, name, actor=actor)
            return
        try:
            act(self.repository, name, actor=actor)
        except CommitExpired:
            assert expiry
            return
        for each, place in places.items():
            target[each].append(replace(source[each].pop(), undone_by=actor))
            model.set(each, place, drops=True)
            if place is not None:
                model.brought_back(place)

    def _places(self, ref: str, source: dict[str, list[Step]]) -> dict[str, Digest | None]:
        """Where the last step of `ref` takes it, and the branch that was renamed with it.

        Nowhere when something was done to that other branch since.
        """
        steps = {ref: source[ref][-1]}
        if other := steps[ref].other:
            beside = source[other][-1] if source[other] else None
            if beside is None or beside.pair != steps[ref].pair:
                return {}
            steps[other] = beside
        back = source is self.model.done
        return {each: step.old if back else step.new for each, step in steps.items()}

    def _step_expiry(self, place: Digest | None) -> tuple[type[Exception], ...]:
        return (CommitExpired,) if place in self.model.gone else ()

    # ---- merges

    @precondition(lambda self: self._kept())
    @rule(name=MOSTLY_MAIN, at=PICK, strategy=STRATEGIES, forward=st.booleans(), actor=ACTORS)
    def merge(self, name: str, at: int, strategy: str, actor: str, *, forward: bool) -> None:
        model, ref, other = self.model, f"heads/{name}", self._pick(at)
        tip = model.refs.get(ref)

        def act() -> merge_branches.MergeOutcome:
            return merge_branches.merge(
                self.repository,
                name,
                other,
                author=actor,
                message="merge",
                strategy=strategy,
                fast_forward=forward,
                clock=self._clock,
            )

        if tip is None:
            with pytest.raises(NotFoundError):
                act()
        elif other in model.ancestors([tip]):
            assert act() == merge_branches.MergeOutcome()
        elif forward and tip in model.ancestors([other]):
            assert act().forwarded == other
            model.move(ref, other, actor)
        else:
            self._merge_commit(ref, tip, other, strategy, actor, act)

    def _merge_commit(
        self,
        ref: str,
        tip: Digest,
        other: Digest,
        strategy: str,
        actor: str,
        act: Callable[[], merge_branches.MergeOutcome],
    ) -> None:
        model = self.model
        bases = sorted(model.merge_bases(tip, other))
        ours, theirs = model.files(tip), model.files(other)
        try:
            expected = three_way(model.files(bases[0] if bases else None), ours, theirs, strategy)
        except RefusedError:
            expected = None
        if len(bases) > 1:
            # What a merged base is, tests/repo/history/test_merge_trees.py tests; here only that
            # the outcome is made of what the sides have.
            try:
                committed = act().committed
            except ConflictError:
                return
            assert committed is not None
            expected = files_at(self.repository, committed.digest)
            assert set(expected.items()) <= {*ours.items(), *theirs.items()}
        elif expected is None:
            with pytest.raises(ConflictError):
                act()
            return
        else:
            committed = act().committed
        assert committed is not None
        assert committed.commit.parents == (tip, other)
        self._made(committed.digest, expected, (tip, other))
        model.move(ref, committed.digest, actor)

    # ---- what changes nothing

    @rule()
    def reopen(self) -> None:
        """Go on as somebody who remembers nothing. What was begun goes on with the old handle."""
        self.repository = open_repository(self.store, drivers={})

    @rule(release=st.booleans(), deletes=st.booleans())
    def collect(self, *, release: bool, deletes: bool) -> None:
        self.condemned += collector.collect_late(self.store, release=release)
        self.model.collect(release=release)
        if deletes:
            collector.delete(self.repository, self.condemned)

    @rule(part=st.integers(1, 3))
    def delete_late(self, part: int) -> None:
        collector.delete(self.repository, self.condemned[::part])

    @invariant()
    def every_ref_is_where_the_model_has_it(self) -> None:
        if hasattr(self, "repository"):
            assert dict(self.repository.log.refresh().state.refs) == self.model.refs

    def teardown(self) -> None:
        if hasattr(self, "repository"):
            collector.delete(self.repository, self.condemned)
            fresh = open_repository(self.store, drivers={})
            view = fresh.log.refresh()
            assert dict(view.state.refs) == self.model.refs
            assert len(list(fresh.log.records(1, view.generation + 1))) == view.generation
            for digest in sorted(self.model.live() - self.model.gone):
                self._check_commit(fresh, digest)

    def _check_commit(self, repository: RepositoryCore, digest: Digest) -> None:
        made = self.model.commits[digest]
        assert files_at(repository, digest) == made.files
        assert read_commit(repository.objects, digest).parents == made.parents

    def _expect(
        self,
        works: bool,
        refusal: type[Exception] | tuple[type[Exception], ...],
        act: Callable[[], object],
        apply: Callable[[], None],
    ) -> None:
        if works:
            act()
            apply()
        else:
            with pytest.raises(refusal):
                act()

    def _kept(self) -> list[Digest]:
        return [digest for digest in self.model.commits if digest not in self.model.gone]

    def _pick(self, at: int) -> Digest:
        kept = self._kept()
        return kept[at % len(kept)]


class InMemory(RepositoryMachine):
    def backend(self) -> Backend:
        return MemoryBackend()


class OnDisk(RepositoryMachine):
    def backend(self) -> Backend:
        self.folder = tempfile.TemporaryDirectory()
        return LocalBackend(Path(self.folder.name) / "store")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestInMemory = pytest.mark.timeout(120)(InMemory.TestCase)
TestOnDisk = pytest.mark.timeout(120)(OnDisk.TestCase)
TestOnDisk.settings = settings(max_examples=examples(3))
