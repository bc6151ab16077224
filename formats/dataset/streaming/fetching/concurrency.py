"""How many requests should be in flight at once?

As many as still make more bytes arrive. With latency a single request leaves the link idle most of
the time; beyond the link's capacity further requests only wait for each other, hold memory, and
provoke the store to refuse some; and where they share the link evenly, all of them are answered
late and at one moment. Nobody knows the link beforehand, so `Concurrency` tries: it doubles while
that pays, then looks now and then whether a few more or a few less do as well. An answer of "slow
down" takes effect at once.

The goodput of one round is noisy, and that of the first has nothing to be compared with. How long
requests take tells more: the first ones have the link for themselves, and as soon as later ones
take twice as long, they spend half of their time waiting for each other, and the link is full. From
then on no fewer are tried than keep it full while this process is busy with something else.

Requests that are sent at one moment share the link, so they are answered at one moment as well, and
until the next ones are the link is idle. Therefore some more follow the first ones, one by one,
while nothing was answered yet: from then on answers are spread over time.

Pure: time comes in with every answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

_DOUBLING_PAYS = 1.25  # times the goodput before
_MORE_PAYS = 1.05
_LESS_COSTS = 0.97
_MORE, _LESS = 1.25, 0.8
_SLOWER = 0.6  # of the limit is left after "slow down",
_REFUSED = 0.9  # and so much of it is the most for a while
_CALM_ROUNDS = 4  # between two attempts
_WARY_ROUNDS = 100  # after "slow down" the limit stays below the one that was refused
_PACE_SECONDS = 0.002  # between two of those that follow the first ones,
_PACED_SECONDS = 0.1  # for so long: a slow link has enough to do
_LEAST_ANSWERS = 8  # of a round: goodput over fewer is noise
_PAUSE_SECONDS = 0.05  # for so long others may hold the interpreter lock, and nothing is asked
_CROWDED = 2.0  # times as long as the first ones take requests that wait for each other


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many requests may be in flight: at the start, at least, and at most."""

    start: int = 16
    least: int = 2
    most: int = 128

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.start <= self.most:
            raise ValueError(f"Bounds need 1 <= least <= start <= most, got {self}")


@dataclass(slots=True)
class _Round:
    """About as many answers as requests are in flight, so each of them took part."""

    began: float | None = None
    bytes: int = 0
    taken: list[tuple[float, float]] = field(default_factory=list)  # when sent, and how long


@dataclass(slots=True)
class Concurrency:
    """The limit of requests in flight. Not thread-safe.

    Attributes:
        bounds: of the limit.
        limit: how many requests may be in flight now.
        reached: the highest limit so far.
        filling: how many requests are answered in the time that one of them takes when it does not
            wait for others: more than that wait; 0: not known yet.
    """

    bounds: Bounds = Bounds()
    limit: int = 0
    reached: int = 0
    filling: int = 0
    _doubling: bool = True
    _base: float = 0.0  # goodput at `_before`, or at `limit` when nothing is tried
    _before: int = 0  # the limit to go back to when an attempt does not pay; 0: none
    _try_less: bool = False
    _calm: int = 0
    _slowed: float | None = None
    _ceiling: int = 0
    _wary: int = 0
    _moved: float = float("-inf")  # when the limit changed last
    _round: _Round = field(default_factory=_Round)
    _first: float | None = None  # when the first request was sent
    _heard: bool = False  # of any
    _alone: float = 0.0  # seconds of requests that had the link for themselves
    _enough: int = 0  # no less is tried: it keeps the link busy while nobody can ask for more

    def __post_init__(self) -> None:
        self.limit = self.reached = self.limit or self.bounds.start

    def sent(self, now: float) -> None:
        """A request was sent."""
        if self._first is None:
            self._first = now

    def pace(self, now: float) -> float | None:
        """Let one more follow the first ones, if it is time; seconds until the next, if any."""
        if self._heard or self._first is None or self.limit >= self.bounds.most:
            return None
        since = now - self._first
        paced = self.bounds.start + int(min(since, _PACED_SECONDS) / _PACE_SECONDS)
        self.limit = max(self.limit, min(paced, self.bounds.most))
        self.reached = max(self.reached, self.limit)
        return None if since >= _PACED_SECONDS else _PACE_SECONDS - since % _PACE_SECONDS

    def answered(self, size_bytes: int, began: float, now: float, *, binding: bool) -> None:
        """A request of `size_bytes`, sent at `began`, was answered in full.

        `binding` says whether further requests waited for the limit: only then goodput tells
        anything about it.
        """
        self._heard = True
        if not binding:
            self._round = _Round()
            return
        found = self._round
        if began < self._moved:
            return  # of the limit before
        if found.began is None:
            found.began = now  # the next `limit` answers take one round trip, or what the link says
            return
        found.taken.append((began, now - began))
        found.bytes += size_bytes
        if len(found.taken) >= max(self.limit, _LEAST_ANSWERS) and now > found.began:
            self._round = _Round(now)
            self._judge(found, now)

    def slowed_down(self, began: float, now: float) -> None:
        """A request, sent at `began`, was refused because there were too many."""
        self._heard = True
        # Those that were on their way when the limit was lowered say nothing new.
        if self._slowed is not None and began <= self._slowed:
            return
        self._slowed = now
        self._ceiling, self._wary = int(self.limit * _REFUSED), _WARY_ROUNDS
        self._settle(int(self.limit * _SLOWER), now)
        self._base = 0.0

    def _judge(self, found: _Round, now: float) -> None:
        assert found.began is not None
        goodput = found.bytes / (now - found.began)
        self._wary -= 1
        if self._doubling:
            rate = len(found.taken) / (now - found.began)
            self._judge_doubling(self._waits(found), goodput, rate, now)
        elif self._before:
            self._judge_attempt(goodput, now)
        else:
            self._base = goodput if not self._base else 0.7 * self._base + 0.3 * goodput
            self._calm -= 1
            if self._calm <= 0:
                self._attempt(now)

    def _judge_doubling(self, waits: float, goodput: float, rate: float, now: float) -> None:
        self.filling = math.ceil(rate * self._alone)
        if waits >= _CROWDED:
            self._enough = int(rate * (_CROWDED * self._alone + _PAUSE_SECONDS))
            self._settle(min(self._enough, self.limit), now)
        elif goodput < self._base * _DOUBLING_PAYS:
            # Twice as many brought little: the truth lies between, where attempts find it.
            self._settle(int(0.75 * self.limit), now)
        elif self.limit == self.bounds.most:
            self._settle(self.limit, now)
        else:
            self._base = goodput
            self._move(2 * self.limit, now)

    def _waits(self, found: _Round) -> float:
        """How many times as long as the very first ones the requests of a round took."""
        taken = [seconds for _, seconds in found.taken]
        if not self._alone:
            # In the order of sending, which does not favour quick ones.
            first = sorted(found.taken)[: max(1, len(taken) // 4)]
            self._alone = median(seconds for _, seconds in first)
            taken = taken[len(taken) // 2 :]
        return median(taken) / self._alone if self._alone else 0.0

    def _judge_attempt(self, goodput: float, now: float) -> None:
        wanted = self._base * (_MORE_PAYS if self.limit > self._before else _LESS_COSTS)
        if goodput >= wanted:
            self._base = goodput
            self._calm = 1  # the same direction again, soon
        else:
            self._move(self._before, now)
            self._try_less = not self._try_less
            self._calm = _CALM_ROUNDS
        self._before = 0

    def _attempt(self, now: float) -> None:
        self._before = self.limit
        if self._try_less:
            self._move(min(self.limit, max(int(self.limit * _LESS), self._enough)), now)
        else:
            self._move(int(self.limit * _MORE) + 1, now)
        if self.limit == self._before:  # at a bound: the other way next time
            self._before, self._calm = 0, _CALM_ROUNDS
            self._try_less = not self._try_less

    def _settle(self, limit: int, now: float) -> None:
        self._doubling, self._before = False, 0
        self._calm = _CALM_ROUNDS
        self._move(limit, now)

    def _move(self, limit: int, now: float) -> None:
        most = self._ceiling if self._wary > 0 else self.bounds.most
        self.limit = max(min(limit, most), self.bounds.least)
        self.reached = max(self.reached, self.limit)
        self._moved = now
        self._round = _Round()
