"""SSH signatures of commits and tags: Ed25519 keys as ssh has them, in the format SSHSIG.

A signature proves that whoever holds a key saw exactly these bytes. Whose key that is, a reader
must know from elsewhere: from a file of allowed signers that he keeps himself, or, as far as he
trusts whoever can write to the store, from the repository's own list.

What is stored is the binary form of what ``ssh-keygen -Y sign -n tensorrepo`` writes, so that
``ssh-keygen -Y verify`` can check it without us.

Source:
    docs/spec/trees.md, section "Commit"; OpenSSH's PROTOCOL.sshsig.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, Literal

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.history.commits import Commit, signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NAMESPACE: Final = b"tensorrepo"
KEY_TYPE: Final = b"ssh-ed25519"
_MAGIC: Final = b"SSHSIG"
_HASH: Final = b"sha512"
_VERSION: Final = Struct(">I")
_LENGTH: Final = Struct(">I")
_KEY_TEXT: Final = re.compile(r"ssh-ed25519 +([A-Za-z0-9+/=]+)")
_NO_LIBRARY: Final = (
    "signatures need the package cryptography: pip install 'tensorrepo[sign]'. Nothing was signed "
    "or checked."
)

SignatureState = Literal["good", "unknown-key", "bad", "none"]


@dataclass(frozen=True, slots=True)
class Signatory:
    """Who signed, as far as the allowed signers tell.

    Attributes:
        state: ``good``: by an allowed key. ``unknown-key``: the signature is right, the key is
            nobody's. ``bad``: it is not of these bytes, or no signature at all. ``none``: none.
        name: name that the allowed signers give the key; "" where they do not.
        key: the key as OpenSSH writes it, without comment; "" where there is none.
        repository: id of the repository that it was made in, where that is another one.
    """

    state: SignatureState
    name: str = ""
    key: str = ""
    repository: str = ""

    def __str__(self) -> str:
        where = f", made in repository {self.repository:.12}" if self.repository else ""
        if self.state == "good":
            return f"good signature by {self.name} ({fingerprint(self.key)}){where}"
        if self.state == "unknown-key":
            key = fingerprint(self.key)
            return f"signature by a key that nobody is known to have ({key}){where}"
        return "BAD signature" if self.state == "bad" else "not signed"


UNSIGNED: Final = Signatory("none")


class SshSigner:
    """A private key that signs. Its repr shows the public half alone."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = _text_of(_public_blob(key))

    @classmethod
    def load(cls, path: Path, passphrase: Callable[[], str] | None = None) -> SshSigner:
        """The key in an OpenSSH private key file.

        Args:
            path: file of the key.
            passphrase: asked where the key is encrypted; None: such a key is refused.

        Raises:
            NotFoundError: there is no such file.
            InvalidInputError: it holds no Ed25519 key, or is not opened by the passphrase.
            UnsupportedError: the package cryptography is missing.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotFoundError(
                f"{path}: no signing key ({error.strerror}). `ssh-keygen -t ed25519` makes one, "
                "`tensorrepo config user.signingkey FILE` names it."
            ) from error
        return cls(_private_key(path, data, passphrase))

    def sign(self, data: bytes) -> bytes:
        """The SSHSIG of `data`, binary."""
        signature = _string(KEY_TYPE) + _string(self._key.sign(_signed(data)))
        return b"".join(
            (
                _MAGIC,
                _VERSION.pack(1),
                _string(_blob_of(self.public_key)),
                _string(NAMESPACE),
                _string(b""),
                _string(_HASH),
                _string(signature),
            )
        )

    def __repr__(self) -> str:
        return f"<SshSigner {fingerprint(self.public_key)}>"


def commit_signatory(commit: Commit, allowed: Mapping[str, str]) -> Signatory:
    """Who signed a commit; `allowed` maps names to keys."""
    if commit.signature is None:
        return UNSIGNED
    return signatory(commit.signature, signed_bytes(commit), allowed)


def signatory(signature: bytes, data: bytes, allowed: Mapping[str, str]) -> Signatory:
    """Who made the SSHSIG `signature` of `data`.

    Raises:
        UnsupportedError: the package cryptography is missing.
    """
    try:
        blob, raw = _parse(signature)
        _verify(blob, raw, _signed(data))
    except ValueError:
        return Signatory("bad")
    key = _text_of(blob)
    name = next((name for name, each in sorted(allowed.items()) if key_text(each) == key), "")
    return Signatory("good" if name else "unknown-key", name, key)


def key_text(text: str) -> str:
    """An Ed25519 public key as OpenSSH writes it, without options and comment.

    Raises:
        InvalidInputError: `text` holds none.
    """
    found = _KEY_TEXT.search(text)
    try:
        if found is not None and len(_key_of(base64.b64decode(found[1], validate=True))):
            return f"{KEY_TYPE.decode()} {found[1]}"
    except (ValueError, binascii.Error):
        pass
    if "PRIVATE KEY" in text:  # and none of it is repeated here
        raise InvalidInputError(
            "that is a private key, which nobody else may see: name the public one, the file that "
            "ends in .pub"
        )
    raise InvalidInputError(
        f"{text.strip()[:60]!r} is no Ed25519 key: expected 'ssh-ed25519 AAAA...', as in a file "
        "that ends in .pub"
    )


def allowed_signers(text: str) -> dict[str, str]:
    """Names and keys of a file in ssh's format of allowed signers; keys of other types are skipped.

    Raises:
        InvalidInputError: a line holds a damaged key.
    """
    signers = {}
    for line in text.splitlines():
        names, _, rest = line.strip().partition(" ")
        if not names or names.startswith("#") or KEY_TYPE.decode() not in rest:
            continue
        for name in names.split(","):
            signers[name] = key_text(rest)
    return signers


def fingerprint(key: str) -> str:
    """``SHA256:...``, as ``ssh-keygen -l`` shows a key."""
    digest = hashlib.sha256(_blob_of(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _private_key(
    path: Path, data: bytes, passphrase: Callable[[], str] | None
) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    except ImportError as error:
        raise UnsupportedError(_NO_LIBRARY) from error

    def loaded(password: bytes | None) -> object:
        try:
            return load_ssh_private_key(data, password=password)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            if password is None and passphrase is not None and "password" in str(error):
                return loaded(passphrase().encode())
            raise _unusable(path, str(error)) from None

    key = loaded(None)
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, f"it is of type {type(key).__name__.strip('_')}")
    return key


def _unusable(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} cannot sign: expected a private Ed25519 key in ssh's format, {why.rstrip('.')}"
    )


def _verify(blob: bytes, raw: bytes, data: bytes) -> None:
    """Raises ValueError."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise UnsupportedError(_NO_LIBRARY) from error
    try:
        Ed25519PublicKey.from_public_bytes(_key_of(blob)).verify(raw, data)
    except InvalidSignature as error:
        raise ValueError("the signature is not of these bytes") from error


def _signed(data: bytes) -> bytes:
    """What the key signs: a hash of the data, bound to what the signature is for."""
    hashed = hashlib.sha512(data).digest()
    return _MAGIC + _string(NAMESPACE) + _string(b"") + _string(_HASH) + _string(hashed)


def _parse(signature: bytes) -> tuple[bytes, bytes]:
    """Key blob and raw signature. Raises ValueError."""
    head = _MAGIC + _VERSION.pack(1)
    if not signature.startswith(head):
        raise ValueError("not an SSHSIG of version 1")
    blob, namespace, _, hash_name, inner = _strings(signature[len(head) :], 5)
    kind, raw = _strings(inner, 2)
    if (namespace, hash_name, kind) != (NAMESPACE, _HASH, KEY_TYPE):
        raise ValueError("a signature for something else, or by another type of key")
    return blob, raw


def _strings(data: bytes, count: int) -> list[bytes]:
    strings, at = [], 0
    for _ in range(count):
        if at + _LENGTH.size > len(data):
            raise ValueError("cut short")
        stop = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if stop > len(data):
            raise ValueError("cut short")
        strings.append(data[at + _LENGTH.size : stop])
        at = stop
    if at != len(data):
        raise ValueError("goes on after its end")
    return strings


def _string(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _public_blob(key: Ed25519PrivateKey) -> bytes:
    return _string(KEY_TYPE) + _string(key.public_key().public_bytes_raw())


def _key_of(blob: bytes) -> bytes:
    """The 32 bytes of a key. Raises ValueError."""
    kind, raw = _strings(blob, 2)
    if kind != KEY_TYPE or len(raw) != 32:
        raise ValueError("no Ed25519 key")
    return raw


def _blob_of(key: str) -> bytes:
    return base64.b64decode(key.split()[1])


def _text_of(blob: bytes) -> str:
    return f"{KEY_TYPE.decode()} {base64.b64encode(blob).decode()}"
