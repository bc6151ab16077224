"""A page of questions, answered anew: what its blocks print, put behind them.

    python -m tests.support.architecture.answers docs/guides/questions.md

writes the answers into the page; the tests compare them with those that stand there. Blocks of
`python` and `sql` and commands of `console` run from top to bottom, in one folder; a block `text`
behind one holds what it printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tensorrepo.cli.main import app
from tensorrepo.query.sql.results import as_text

_BLOCK = re.compile(r"^```(python|sql|console)\n(.*?)^```\n(?:\n?```text\n.*?^```\n)?",
                    re.MULTILINE | re.DOTALL)  # fmt: skip
_MOST_ROWS = 100
# What differs from one run of a page, or one machine, to the next: digests, times, the last digits
# of what was trained, and how long things took.
_CHANGING = re.compile(
    r"\b[0-9a-f]{8,64}\b|\b\d+\.\d{4,}\b"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: UTC)?|\b[\d.]+ (?:ms|s|min)\b"
)


def answered(text: str) -> str:
    """The page with the answers of its blocks behind them, run in the folder that one is in."""
    names: dict[str, Any] = {"__name__": "page"}
    done: list[str] = []
    end = 0
    for match in _BLOCK.finditer(text):
        shown = _run(match[1], match[2], names)
        done += [text[end : match.start()], f"```{match[1]}\n{match[2]}```\n"]
        done += [f"\n```text\n{shown}\n```\n"] if shown else []
        end = match.end()
    return "".join([*done, text[end:]])


def unchanging(text: str) -> str:
    """`text` without what differs from run to run; columns are of no width."""
    return re.sub(r" {2,}", "  ", _CHANGING.sub("(...)", text))


def _run(language: str, source: str, names: dict[str, Any]) -> str:
    if language == "sql":
        found = names["repo"].sql(source)
        return as_text(found.columns, found.head(_MOST_ROWS)[0])
    if language == "console":
        return "\n".join(_commands(source))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "page", "exec"), names)  # the page is ours
    return printed.getvalue().rstrip()


def _commands(source: str) -> Iterator[str]:
    for line in source.splitlines():
        words = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", line.removeprefix("$ tensorrepo "))
        done = CliRunner().invoke(app, [word.strip("'\"") for word in words])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        yield "\n".join(part.rstrip() for part in done.stdout.rstrip().splitlines())


def main() -> None:
    """Write the answers into the page that is named."""
    page = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ.update(HOME=folder, COLUMNS="100", TENSORREPO_AUTHOR="Ada <ada@example.org>")
        os.environ.update({f"XDG_{one}_HOME": str(home / one) for one in ("CACHE", "STATE")})
        os.chdir(folder)
        page.write_text(answered(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
