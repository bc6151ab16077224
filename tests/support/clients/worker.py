"""Runs in a client's interpreter: takes Python as lines of JSON, answers what it returned.

Every piece of code is the body of a function, and sees what those before it assigned to ``kept``.
What cannot be JSON is answered as its text.
"""

from __future__ import annotations

import json
import sys
import textwrap


def main() -> None:
    kept: dict[str, object] = {}
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is none of the answers
    for line in sys.stdin:
        scope = {"kept": kept}
        try:
            exec("def body():\n" + textwrap.indent(json.loads(line), "    "), scope)
            told = {"returned": scope["body"]()}  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  the test looks at it
            kinds = [kind.__name__ for kind in type(error).__mro__]
            told = {"raised": kinds, "message": str(error)}
        answers.write(json.dumps(told, default=str) + "\n")
        answers.flush()


main()
