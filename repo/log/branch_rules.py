"""Rules of branches as the log's config holds them: records, parsed and checked.

Source:
    docs/spec/log.md, section "Config keys".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.tables import RecordTable, Shown

BRANCHES: Final = "heads/"
RULES_KEY: Final = "branch_rules"
RULES_FEATURE: Final = "branch-rules"
KEEP_KEY: Final = "keep_rules"
KEEP_FEATURE: Final = "keep-rules"
_LISTS: Final = ("pushers", "signers", "checks")
_FLAGS: Final = ("fast_forward", "signed")


_SPANS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Which commits of a branch are kept: what either member keeps.

    Attributes:
        newest: number of the newest commits.
        seconds: age up to which commits are kept, by the times that they tell.
    """

    newest: int = 1
    seconds: int = 0

    def __post_init__(self) -> None:
        if self.newest < 1 or self.seconds < 0:
            raise InvalidInputError("at least the newest commit of a branch is kept")

    def __str__(self) -> str:
        """As it is typed: ``30d,100``."""
        unit, size = next((one for one in _SPANS.items() if not self.seconds % one[1]), ("s", 1))
        parts = [f"{self.seconds // size}{unit}"] if self.seconds else []
        if self.newest > 1 or not parts:
            parts.append(str(self.newest))
        return ",".join(parts)


@dataclass(frozen=True, slots=True, repr=False)
class BranchRule(Shown):
    """What holds for the branches that match `pattern`.

    Attributes:
        pattern: name of a branch, or the beginning of names followed by ``*``.
        pushers: who may move them: addresses, or ``Name <address>``; empty: everybody.
        fast_forward: whether they may neither be deleted nor moved to anything but a descendant.
        signed: whether each new commit must be signed by an allowed key.
        signers: names of those whose keys count; empty: all allowed ones.
        checks: names of checks that must pass.
        keep: which of their commits `gc` keeps; None: all.
    """

    pattern: str
    pushers: tuple[str, ...] = ()
    fast_forward: bool = False
    signed: bool = False
    signers: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    keep: KeepRule | None = None

    def __post_init__(self) -> None:
        check_ref(BRANCHES + (self.pattern.removesuffix("*").rstrip("/") or "x"))
        names = (*self.pushers, *self.signers, *self.checks)
        if not all(isinstance(name, str) and name.strip() == name and name for name in names):
            raise InvalidInputError(
                f"rule of {self.pattern}: pushers, signers and checks are names, none of them empty"
            )

    def matches(self, branch: str) -> bool:
        if self.pattern.endswith("*"):
            return branch.startswith(self.pattern[:-1])
        return branch == self.pattern

    def words(self) -> Iterator[str]:
        """What it demands, for people."""
        if self.pushers:
            yield f"moved by {', '.join(self.pushers)} alone"
        if self.fast_forward:
            yield "moved forward only, never deleted"
        if self.signed:
            yield f"signed by {', '.join(self.signers) or 'an allowed key'}"
        if self.checks:
            yield f"checked by {', '.join(self.checks)}"
        if self.keep is not None:
            yield f"keeps {self.keep}"

    def to_table(self) -> RecordTable:
        return RecordTable((f"{self.pattern}: {'; '.join(self.words()) or 'nothing'}",))

    def to_json(self) -> dict[str, Any]:
        keep = {} if self.keep is None else {"keep": str(self.keep)}
        return {"pattern": self.pattern} | self.stored() | keep

    def stored(self) -> dict[str, Any]:
        """What the config's rules hold under its pattern; what it keeps is with `KEEP_KEY`."""
        lists = {name: sorted(getattr(self, name)) for name in _LISTS if getattr(self, name)}
        return lists | {name: True for name in _FLAGS if getattr(self, name)}


def parse_rule(pattern: object, demands: Any) -> BranchRule:
    """The rule that an object of the config holds. Raises InvalidInputError."""
    if not isinstance(pattern, str) or not isinstance(demands, dict):
        raise InvalidInputError("a rule is a pattern with an object of demands")
    if unknown := set(demands) - {*_LISTS, *_FLAGS}:
        raise InvalidInputError(f"rule of {pattern}: unknown demand {min(unknown)!r}")
    lists = {key: demands.get(key, []) for key in _LISTS}
    flags = {key: demands.get(key, False) for key in _FLAGS}
    if not all(isinstance(each, (list, tuple)) for each in lists.values()):
        raise InvalidInputError(f"rule of {pattern}: {', '.join(_LISTS)} are lists")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise InvalidInputError(f"rule of {pattern}: {' and '.join(_FLAGS)} are true or false")
    pushers, signers, checks = (tuple(lists[key]) for key in _LISTS)
    forward, signed = (flags[key] for key in _FLAGS)
    return BranchRule(pattern, pushers, forward, signed, signers, checks)


def parse_keep_rules(value: object) -> Mapping[str, KeepRule]:
    """What the config says is kept, by pattern. Raises InvalidInputError."""
    if not isinstance(value, dict):
        raise InvalidInputError("it must map patterns to what is kept")
    found = {}
    for pattern, kept in value.items():
        BranchRule(pattern)  # refuses what is no pattern
        if not isinstance(kept, dict) or kept.keys() != {"newest", "seconds"}:
            raise InvalidInputError(f"{pattern} must have newest and seconds")
        if not all(type(number) is int for number in kept.values()):
            raise InvalidInputError(f"{pattern}: newest and seconds are whole numbers")
        found[pattern] = KeepRule(**kept)
    return found


def keep_rules_problem(value: object) -> str | None:
    """Why `value` cannot be what the config holds of what is kept; None when it can."""
    try:
        parse_keep_rules(value)
    except InvalidInputError as error:
        return f"config {KEEP_KEY}: {error}"
    return None


def rules_problem(value: object) -> str | None:
    """Why `value` cannot be what the config holds of rules; None when it can."""
    if not isinstance(value, dict):
        return f"config {RULES_KEY} must map patterns to rules"
    try:
        for pattern, demands in value.items():
            parse_rule(pattern, demands)
    except InvalidInputError as error:
        return f"config {RULES_KEY}: {error}"
    return None
