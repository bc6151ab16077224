"""Structured logs: a JSON object a line, each with the id of its request, none with a secret.

Paths are logged without their queries. Whatever looks like a token, in a message of ours or of a
library, is blackened before it is written.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogForm = Literal["text", "json"]
REQUEST: Final[ContextVar[str]] = ContextVar("tensorrepo_request", default="")
ACCESS: Final = "tensorrepo.access"
_SECRETS = re.compile(
    r"(?:trp|whs|trs)_[0-9A-Za-z_-]{8,}"
    r"|(?<=://)[^/\s@]+(?=@)"  # users and passwords in URLs
    r"|(?i:(?<=bearer )[^\s'\"]{8,})"
    r"|(?i:(?<=[?&])(?:x-amz-signature|signature|sig|token|code|state)=[^&\s'\"]+)"
)


def redacted(text: str) -> str:
    """`text` without what looks like a secret."""
    return _SECRETS.sub("[hidden]", text)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if request := REQUEST.get():
            said["request_id"] = request
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["exception"] = redacted("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(said, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A record for people, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def configure_logging(form: LogForm) -> None:
    """Write this process's logs to its standard error; as JSON with a line for each request."""
    handler = logging.StreamHandler()
    is_json = form == "json"
    handler.setFormatter(
        JsonFormatter() if is_json else TextFormatter("%(asctime)s %(levelname)s %(message)s")
    )
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ACCESS).setLevel(logging.INFO if is_json else logging.CRITICAL)
