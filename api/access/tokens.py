"""Tokens: ``trp_`` and 256 random bits and a checksum; only their hash is stored.

The checksum lets scanners of leaked secrets, and the service, tell a token from other text without
asking anybody.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import zlib
from typing import Final

PREFIX: Final = "trp_"
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BITS: Final = 256
_DIGITS: Final = 43  # of 62, that hold 256 bits
_CHECK_DIGITS: Final = 6  # of 62, that hold a CRC-32
_FORM = re.compile(rf"{PREFIX}([0-9A-Za-z]{{{_DIGITS}}})([0-9A-Za-z]{{{_CHECK_DIGITS}}})")


def make_token() -> str:
    """A new token by this machine's randomness."""
    body = _base62(secrets.randbits(_BITS), _DIGITS)
    return f"{PREFIX}{body}{_checksum(body)}"


def sent_token(header: str) -> str | None:
    """The token of an Authorization header; None: it holds none.

    Clients that know users and passwords alone send it as the password, by whatever name.
    """
    kind, _, proof = header.partition(" ")
    if kind.lower() == "bearer":
        return proof.strip()
    if kind.lower() != "basic":
        return None
    try:
        _, colon, password = base64.b64decode(proof, validate=True).decode().partition(":")
    except ValueError:
        return None
    return password if colon else None


def is_token(text: str) -> bool:
    """Whether `text` has the form of a token, its checksum included."""
    parts = _FORM.fullmatch(text)
    return parts is not None and _checksum(parts[1]) == parts[2]


def token_hash(token: str) -> str:
    """What is stored of a token, and found by: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_id(token: str) -> str:
    """What a token is called where it must not be seen: in lists and in the audit log."""
    return token_id_of(token_hash(token))


def token_id_of(hashed: str) -> str:
    """The public id of the token that has this hash."""
    return hashed[:12]


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(f"{PREFIX}{body}".encode()), _CHECK_DIGITS)


def _base62(number: int, digits: int) -> str:
    found = []
    for _ in range(digits):
        number, digit = divmod(number, len(_ALPHABET))
        found.append(_ALPHABET[digit])
    return "".join(reversed(found))
