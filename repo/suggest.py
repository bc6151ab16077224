"""Spelling suggestions: the names that one which is not there is most like."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

SIMILAR = 0.5  # ratio of difflib's, of 1 for equal names
MOST = 3
SHOWN = 8


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The names most like `name`, the nearest first, whatever their case; often none."""
    by_fold: dict[str, list[str]] = {}
    for each in known:
        by_fold.setdefault(each.casefold(), []).append(each)
    found = difflib.get_close_matches(name.casefold(), by_fold, MOST, SIMILAR)
    return [each for fold in found for each in by_fold[fold]][:MOST]


def did_you_mean(
    name: str,
    known: Iterable[str] | Mapping[str, str],
    otherwise: str = "",
    shown: Callable[[str], str] = str,
) -> str:
    """The end of a message about a name that is not there: `` Did you mean people?``.

    Args:
        name: what was asked for.
        known: names that there are, or what is to be said for each of them.
        otherwise: sentence for where no name is near.
        shown: how a name is written.

    Returns:
        A sentence with a space before it, or nothing.
    """
    near = near_names(name, known)
    meant = [known[each] for each in near] if isinstance(known, Mapping) else near
    if near:
        return f" Did you mean {' or '.join(map(shown, dict.fromkeys(meant)))}?"
    return f" {otherwise}" if otherwise else ""


def there_are(names: Iterable[str], nothing: str) -> str:
    """The first of some names as a sentence, and how many more; `nothing` where there is none."""
    every = list(names)
    if not every:
        return nothing
    more = f" and {len(every) - SHOWN:,} more" if len(every) > SHOWN else ""
    return f"There {'is' if len(every) == 1 else 'are'} {', '.join(every[:SHOWN])}{more}."
