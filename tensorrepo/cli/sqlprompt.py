"""How does one ask several queries, one after the other, at a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorrepo.cli import output
from tensorrepo.query.functions import NAMES
from tensorrepo.repo.errors import Error, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tensorrepo.connect import Machine

MARK = "tensorrepo> "
MORE = "       ...> "
WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "AS", "AND", "OR",
    "NOT", "IN", "BETWEEN", "DESCRIBE", "SUMMARIZE", "EXPLAIN", "count(*)", "row_id", "row_number",
)  # fmt: skip


def prompt(
    ask: Callable[[str], None], tables: Callable[[], Iterable[str]], machine: Machine
) -> None:
    """Read queries until the end of input; each ends with a semicolon.

    Args:
        ask: answers one.
        tables: names of tables, for completion.
        machine: whose home keeps the history.

    Raises:
        UnsupportedError: prompt_toolkit is not installed.
    """
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "the prompt needs prompt_toolkit: `pip install tensorrepo[sql]`; or give a query"
        ) from error
    words = [*WORDS, *sorted(NAMES), *sorted(tables())]
    lines: Any = PromptSession(
        history=FileHistory(str(_history(machine))),
        completer=WordCompleter(words, ignore_case=True),
    )
    converse(lines.prompt, ask)


def converse(read: Callable[[str], str], ask: Callable[[str], None]) -> None:
    """`ask` each query that `read` gives, line by line; Ctrl-C leaves one, Ctrl-D all."""
    waiting: list[str] = []
    while True:
        try:
            line = read(MORE if waiting else MARK)
            if not waiting and line.strip() in ("quit", "exit", "\\q"):
                return
            waiting.append(line)
            if line.rstrip().endswith(";"):
                query, waiting = "\n".join(waiting), []
                ask(query)
        except KeyboardInterrupt:
            waiting = []
        except EOFError:
            return
        except Error as error:
            output.failure(error)


def _history(machine: Machine) -> Path:
    state = machine.environment.get("XDG_STATE_HOME")
    base = machine.cwd / state if state else machine.home / ".local" / "state"
    folder = base / "tensorrepo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "sql_history"
