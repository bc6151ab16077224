"""Tags of a run: short texts by name, which may change, as people sort their runs by.

They stand in the environment of the run's newest attempt, under "tags".

Source:
    docs/spec/run.md, section "Document".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tensorrepo.formats.runs.run_record import RunDocument, check_metric_name
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_text

TAGS: Final = "tags"
MAX_TAGS: Final = 1000
MAX_TAG_BYTES: Final = 64 << 10


def tags_of(document: RunDocument) -> dict[str, str]:
    """Tags by name, in order; what another writer left there and is no text is passed over."""
    told = document.attempts[-1].environment.get(TAGS) if document.attempts else None
    if not isinstance(told, dict):
        return {}
    return {name: text for name, text in sorted(told.items()) if isinstance(text, str)}


def with_tags(document: RunDocument, changes: Mapping[str, str | None]) -> RunDocument:
    """The run with tags set, or removed where they are None.

    Raises:
        InvalidInputError: a name or a text that no tag may have, or too many.
    """
    joined = {**tags_of(document), **checked_tags(changes)}
    tags = {name: text for name, text in joined.items() if text is not None}
    if len(tags) > MAX_TAGS:
        raise InvalidInputError(f"{len(tags)} tags, a run has {MAX_TAGS} at most")
    *earlier, newest = document.attempts
    others = {name: value for name, value in newest.environment.items() if name != TAGS}
    environment = {**others, TAGS: tags} if tags else others
    changed = msgspec.structs.replace(newest, environment=environment)
    return msgspec.structs.replace(document, attempts=(*earlier, changed))


def checked_tags(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Changes of tags that a run may have. Raises InvalidInputError."""
    for name, text in changes.items():
        check_metric_name(name)
        if text is not None:
            check_text(text, f"tag {name!r:.80}", limit_bytes=MAX_TAG_BYTES, lines=True)
    return dict(changes)
