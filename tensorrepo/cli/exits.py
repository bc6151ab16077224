"""Which exit code does each kind of error have?

Scripts rely on these numbers: a kind may be added, no number ever changes its meaning.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.repo.errors import Error

DONE = 0
NOTHING_TO_DO = 1  # also: differences found, where --exit-code asked for it
USAGE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h: what happened is our mistake
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE

EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "invalid-input": USAGE,
        "not-found": 3,
        "no-such-row": 3,
        "expired": 3,  # was there once; to a script it is gone alike
        "purged": 3,
        "conflict": 4,
        "corrupt": 5,
        "rewound": 5,  # the log is not what it was: nothing read from it can be trusted
        "permission": 6,
        "storage": 7,
        "unsupported": 8,
        "outcome-unknown": 9,
    }
)


def exit_code(error: Error) -> int:
    """The code that the command line ends with after `error`."""
    return EXIT_CODES[error.kind]
