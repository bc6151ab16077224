"""Rules of branches: who may move them, whose signature they need, which checks must pass.

A rule lies in the log's config, so all see the same one. It names people, keys and checks, never
a command: cloning must not run code. What a check runs stands in the user's own settings. Rules
are looked at before each append, at the very head that it would follow, so the answer of a check
counts for this base and this commit alone.

Whoever can write to the store can pass them by. They keep honest people from mistakes; a server in
front enforces them, and readers that check signatures see what happened.

Source:
    docs/spec/log.md, section "Config keys".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, Protocol

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.commits import is_ancestor, walk
from tensorrepo.repo.history.signatures import SshSigner, commit_signatory, key_text
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import (
    BRANCHES,
    KEEP_FEATURE,
    KEEP_KEY,
    RULES_FEATURE,
    RULES_KEY,
    BranchRule,
    parse_keep_rules,
    parse_rule,
)
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.suggest import did_you_mean

SIGNERS_KEY: Final = "signers"
RETENTION_KEY: Final = "retention_seconds"


class AppendsRecords(Protocol):
    """What changing the config takes of a repository."""

    def append(self, decide: Callable[[LogView], tuple[LogEntry, ...]], /) -> object: ...


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One question to a check: may `head` come onto `ref`, which is at `base`?"""

    name: str
    ref: str
    base: Digest | None
    head: Digest


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """What this client brings along: a key to sign with, whom it trusts, and what checks run.

    Attributes:
        signer: gives the key that signs every commit; None: none is signed.
        allowed: names and keys that the user trusts; None: those that the repository lists.
        run_check: runs a check, and raises PermissionDenied where it fails or is unknown here.
    """

    signer: Callable[[], SshSigner] | None = None
    allowed: Mapping[str, str] | None = None
    run_check: Callable[[CheckRun], None] | None = None

    def signers(self, state: State) -> Mapping[str, str]:
        """Names and keys that count."""
        return listed_signers(state) if self.allowed is None else self.allowed


def rules_of(state: State) -> list[BranchRule]:
    """All rules, by pattern."""
    stored = _stored_rules(state)
    kept = parse_keep_rules(_stored_keeps(state))
    return [
        replace(parse_rule(pattern, stored.get(pattern, {})), keep=kept.get(pattern))
        for pattern in sorted({*stored, *kept})
    ]


def _stored_keeps(state: State) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = state.config.get(KEEP_KEY, {})  # type: ignore[assignment]
    return stored


def _stored_rules(state: State) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = state.config.get(RULES_KEY, {})  # type: ignore[assignment]
    return stored


def set_rule(repository: AppendsRecords, rule: BranchRule, *, actor: str) -> BranchRule | None:
    """Put a rule in the place of the one with the same pattern; gives that, if there was one."""
    replaced: list[BranchRule] = []
    if not list(rule.words()):
        raise InvalidInputError(
            f"the rule of {rule.pattern} demands nothing. `tensorrepo rule rm {rule.pattern}` "
            "removes one"
        )

    def change(state: State) -> dict[str, Any]:
        known = list(listed_signers(state))
        if unknown := set(rule.signers) - set(known):
            raise NotFoundError(
                f"no signer {min(unknown)!r}.{did_you_mean(min(unknown), known)} "
                "`tensorrepo signer add NAME KEY` makes one known"
            )
        stored, kept = dict(_stored_rules(state)), dict(_stored_keeps(state))
        replaced[:] = [known for known in rules_of(state) if known.pattern == rule.pattern]
        features: Any = state.config.get("features", ())
        needed: set[str] = set(features)
        changed: dict[str, Any] = {}
        if rule.stored() or rule.pattern in stored:
            demands = {rule.pattern: rule.stored()} if rule.stored() else {}
            stored.pop(rule.pattern, None)
            changed[RULES_KEY] = stored | demands or None
            needed.add(RULES_FEATURE)
        if rule.keep is not None or rule.pattern in kept:
            keep = {rule.pattern: asdict(rule.keep)} if rule.keep is not None else {}
            kept.pop(rule.pattern, None)
            changed[KEEP_KEY] = kept | keep or None
            needed.add(KEEP_FEATURE)
        return changed | {"features": sorted(needed)}

    _configure(repository, actor, f"rule of {rule.pattern}", change)
    return next(iter(replaced), None)


def remove_rule(repository: AppendsRecords, pattern: str, *, actor: str) -> None:
    """Forget the rule of a pattern. Raises NotFoundError where there is none."""

    def change(state: State) -> dict[str, Any]:
        stored, kept = dict(_stored_rules(state)), dict(_stored_keeps(state))
        if pattern not in stored and pattern not in kept:
            hint = did_you_mean(pattern, [*stored, *kept])
            raise NotFoundError(f"no rule for {pattern!r}.{hint}")
        changed: dict[str, Any] = {}
        if stored.pop(pattern, None) is not None:
            changed[RULES_KEY] = stored or None
        if kept.pop(pattern, None) is not None:
            changed[KEEP_KEY] = kept or None
        return changed

    _configure(repository, actor, f"no rule of {pattern}", change)


def retention_seconds(state: State) -> int | None:
    """How long a ref's former values are kept; None where the repository does not say."""
    found: Any = state.config.get(RETENTION_KEY)
    return None if found is None else int(found)


def set_retention(repository: AppendsRecords, seconds: int | None, *, actor: str) -> None:
    """Say how long former values of refs are kept; None: as long as by default."""

    def change(_: State) -> dict[str, Any]:
        return {RETENTION_KEY: seconds}

    _configure(repository, actor, "retention", change)


def listed_signers(state: State) -> Mapping[str, str]:
    """Names and keys that the repository itself lists."""
    signers: Mapping[str, str] = state.config.get(SIGNERS_KEY, {})  # type: ignore[assignment]
    return signers


def add_signer(repository: AppendsRecords, name: str, key: str, *, actor: str) -> None:
    """List a public key, under a name, as one whose signature counts."""
    if not name or name != name.strip():
        raise InvalidInputError(f"{name!r} is no name of a signer: an address does well")
    text = key_text(key)
    _configure(
        repository,
        actor,
        f"signer {name}",
        lambda state: {SIGNERS_KEY: dict(listed_signers(state)) | {name: text}},
    )


def remove_signer(repository: AppendsRecords, name: str, *, actor: str) -> None:
    """Forget a signer: what he signed is by an unknown key from then on.

    Raises:
        NotFoundError: there is none of that name.
        InvalidInputError: a rule needs him.
    """

    def change(state: State) -> dict[str, Any]:
        signers = dict(listed_signers(state))
        if name not in signers:
            raise NotFoundError(f"no signer {name!r}.{did_you_mean(name, list(signers))}")
        needing = [rule.pattern for rule in rules_of(state) if name in rule.signers]
        if needing:
            raise InvalidInputError(
                f"the rule of {needing[0]} needs signer {name!r}: change that rule first"
            )
        del signers[name]
        return {SIGNERS_KEY: signers or None}

    _configure(repository, actor, f"no signer {name}", change)


def refuse_forbidden(
    policy: ClientPolicy,
    objects: ObjectSource,
    view: LogView,
    entries: Iterable[LogEntry],
    read_bulk: Callable[[Digest], tuple[Update, ...]],
) -> None:
    """Raise where a rule forbids what `entries` would do to a branch at `view`.

    `read_bulk` gives the updates that an entry keeps in an object, when they are many.

    Raises:
        PermissionDenied: names the branch, the rule and what it demands. Nothing was written.
    """
    rules = rules_of(view.state)
    if not rules:
        return
    for entry in entries:
        bulk = () if entry.bulk is None else read_bulk(entry.bulk)
        for update in (*entry.updates, *bulk):
            for rule in rules if update.ref.startswith(BRANCHES) else ():
                if rule.matches(update.ref.removeprefix(BRANCHES)):
                    _Judge(policy, objects, view.state, rule, entry, update).judge()


def refuse_purge(state: State, actor: str) -> None:
    """Raise PermissionDenied where `actor` may not move all that rules protect: a purge changes
    what every commit holds, on whatever branch.
    """
    for rule in rules_of(state):
        if rule.pushers and not _is_among(actor, rule.pushers):
            raise PermissionDenied(
                f"a rule protects branch {rule.pattern!r}: only {', '.join(rule.pushers)} may move "
                f"it, so that only they purge what its commits hold, and you are {actor}. Nothing "
                "was changed. Ask one of them to purge it."
            )


@dataclass(frozen=True, slots=True)
class _Judge:
    policy: ClientPolicy
    objects: ObjectSource
    state: State
    rule: BranchRule
    entry: LogEntry
    update: Update

    def judge(self) -> None:
        rule, update = self.rule, self.update
        if rule.pushers and not _is_among(self.entry.actor, rule.pushers):
            self._refuse(
                f"only {', '.join(rule.pushers)} may move it, and you are {self.entry.actor}",
                "Commit on a branch of your own, and ask one of them to merge it",
            )
        if update.new is None:
            if rule.fast_forward:
                self._refuse("it is not to be deleted", "`tensorrepo rule set` changes the rule")
            return
        if rule.fast_forward and update.old is not None:
            self._check_forward(update.old, update.new)
        if rule.signed:
            self._check_signatures(update.new)
        for name in rule.checks:
            self._check(CheckRun(name, update.ref, update.old, update.new))

    def _check_forward(self, old: Digest, new: Digest) -> None:
        if not is_ancestor(self.objects, old, new):
            self._refuse(
                f"it may only move forward, and {new:.12} does not have {old:.12} in its history",
                "`tensorrepo revert` takes a change back by a new commit",
            )

    def _check_signatures(self, new: Digest) -> None:
        allowed = self.policy.signers(self.state)
        if self.rule.signers:
            allowed = {name: key for name, key in allowed.items() if name in self.rule.signers}
        hidden = [self.update.old] if self.update.old else []
        for digest, commit in walk(self.objects, [new], hidden=hidden):
            found = commit_signatory(commit, allowed)
            if found.state != "good":
                self._refuse(
                    f"{digest:.12} ({commit.message.splitlines()[0]:.40}) must be signed by "
                    f"{', '.join(self.rule.signers) or 'an allowed key'}, and has: {found}",
                    "`tensorrepo config user.signingkey FILE`, and commit again with -S",
                )

    def _check(self, run: CheckRun) -> None:
        if self.policy.run_check is None:
            self._refuse(
                f"it needs the check {run.name!r}, and nothing here runs checks",
                f"`tensorrepo config check.{run.name} COMMAND` says what runs it on this machine",
            )
        else:
            self.policy.run_check(run)

    def _refuse(self, why: str, advice: str) -> None:
        branch = self.update.ref.removeprefix(BRANCHES)
        raise PermissionDenied(
            f"a rule protects branch {branch!r}: {why}. Nothing was changed. {advice}."
        )


def _is_among(actor: str, people: Iterable[str]) -> bool:
    address = actor.partition("<")[2].rstrip(">")
    return any(person in (actor, address) for person in people)


def _configure(
    repository: AppendsRecords, actor: str, note: str, change: Callable[[State], dict[str, Any]]
) -> None:
    txn = secrets.token_hex(16)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        data = {"set": change(view.state)}
        return (LogEntry(txn, "config", actor, time.time_ns(), note, data=data),)

    repository.append(decide)
