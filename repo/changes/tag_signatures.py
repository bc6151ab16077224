"""Signatures of tags: what they are made over, and how they travel to other repositories.

A tag is signed in its entry of the log, over words of that entry. At another repository the entry
is another: somebody else fetched the tag, at another time. So a signature that travels takes the
words with it that it was made over, and names the repository where that was.

Source:
    docs/spec/log.md, section "Record"; docs/design/094-a-tags-signature-travels-with-its-words.md.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.signatures import Signatory, signatory
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogEntry, canonical_json, parse_canonical
from tensorrepo.repo.typed_decoding import from_plain

MAX_TRAVELLING_BYTES: Final = 32 << 10  # a record has 64 KiB
_BETWEEN: Final = "."  # signature and words, both base64


class TagStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the signature of a tag is made over: its entry, and the repository that it is in."""

    actor: str
    commit: str
    note: str
    ref: str
    repository: str
    time: int

    @classmethod
    def of(cls, repository: str, entry: LogEntry) -> TagStatement:
        """What is signed of an entry that makes one tag."""
        update = entry.updates[0]
        return cls(entry.actor, update.new or "", entry.note, update.ref, repository, entry.time_ns)

    def encoded(self) -> bytes:
        """The bytes that are signed."""
        return canonical_json(msgspec.to_builtins(self))


def signature_text(signature: bytes) -> str:
    """A signature as the entry has it that it was made over."""
    return base64.b64encode(signature).decode()


def travelling(repository: str, entry: LogEntry) -> str | None:
    """The signature of a tag of `repository` with its words; None where there is none that fits."""
    text = entry.signature
    if text is None or len(entry.updates) != 1:
        return None
    if _BETWEEN not in text:  # else it came from elsewhere itself
        text += _BETWEEN + signature_text(TagStatement.of(repository, entry).encoded())
    return text if len(text) <= MAX_TRAVELLING_BYTES else None


def states(text: str, ref: str, commit: Digest | None) -> bool:
    """Whether a signature that travelled says that `ref` names `commit`."""
    try:
        words = _words(text)
    except ValueError:
        return False
    return (words.ref, words.commit) == (ref, commit)


def signatory_of(repository: str, entry: LogEntry, allowed: Mapping[str, str]) -> Signatory:
    """Who signed the tag that an entry of `repository` makes; `allowed` maps names to keys."""
    text = entry.signature or ""
    try:
        statement = _words(text) if _BETWEEN in text else TagStatement.of(repository, entry)
        signature = base64.b64decode(text.partition(_BETWEEN)[0], validate=True)
    except ValueError:
        return Signatory("bad")
    update = entry.updates[0]
    if (statement.ref, statement.commit) != (update.ref, update.new):
        return Signatory("bad")
    found = signatory(signature, statement.encoded(), allowed)
    if found.state == "bad" or statement.repository == repository:
        return found
    return replace(found, repository=statement.repository)


def _words(text: str) -> TagStatement:
    """What a signature that travelled was made over. Raises ValueError."""
    data = base64.b64decode(text.partition(_BETWEEN)[2], validate=True)
    try:
        return from_plain(parse_canonical(data, "signature of a tag"), TagStatement)
    except (msgspec.ValidationError, CorruptError) as error:
        raise ValueError(str(error)) from error
