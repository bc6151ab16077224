"""Signatures are what ssh-keygen makes and checks, and of exactly the bytes of a commit."""

from __future__ import annotations

import base64
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.signatures import (
    SshSigner,
    allowed_signers,
    fingerprint,
    key_text,
    signatory,
)
from tests.support.effort import sampled

SEED = bytes(range(32))
KEY = ed25519.Ed25519PrivateKey.from_private_bytes(SEED)
SIGNER = SshSigner(KEY)
SIGNATURE = SIGNER.sign(b"data")
ALLOWED = {"ann": SIGNER.public_key + " ann@laptop"}
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")


def key_file(path: Path, key: object, passphrase: bytes | None = None) -> Path:
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, encryption))  # type: ignore[attr-defined]
    path.chmod(0o600)
    return path


def test_a_signature_is_by_the_name_of_its_key() -> None:
    found = signatory(SIGNATURE, b"data", ALLOWED)
    assert (found.state, found.name, found.key) == ("good", "ann", SIGNER.public_key)
    assert signatory(SIGNATURE, b"data", {}).state == "unknown-key"


@pytest.mark.parametrize("at", sampled(range(len(SIGNATURE)), 40))
def test_no_flipped_byte_of_a_signature_is_good(at: int) -> None:
    damaged = bytearray(SIGNATURE)
    damaged[at] ^= 1
    assert signatory(bytes(damaged), b"data", ALLOWED).state == "bad"


@pytest.mark.parametrize(
    ("signature", "data"),
    [
        (SIGNATURE, b"date"),
        (SIGNATURE[:-1], b"data"),
        (SIGNATURE + b"\0", b"data"),
        (b"", b"data"),
        (SIGNATURE.replace(b"tensorrepo", b"tensorrepa"), b"data"),  # for something else
    ],
)
def test_what_is_no_signature_of_these_bytes_is_bad(signature: bytes, data: bytes) -> None:
    assert signatory(signature, data, ALLOWED).state == "bad"


def test_the_private_half_is_shown_by_no_repr() -> None:
    assert repr(SIGNER) == f"<SshSigner {fingerprint(SIGNER.public_key)}>"


def test_a_key_with_a_passphrase_is_opened_by_it(tmp_path: Path) -> None:
    path = key_file(tmp_path / "key", KEY, b"opensesame")
    assert SshSigner.load(path, lambda: "opensesame").public_key == SIGNER.public_key
    with pytest.raises(InvalidInputError, match="cannot sign"):
        SshSigner.load(path, lambda: "wrong")
    with pytest.raises(InvalidInputError, match="password"):
        SshSigner.load(path)


def test_other_files_are_no_keys(tmp_path: Path) -> None:
    other = key_file(tmp_path / "ecdsa", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(InvalidInputError, match="Ed25519"):
        SshSigner.load(other)
    with pytest.raises(NotFoundError, match="ssh-keygen"):
        SshSigner.load(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "ssh-rsa AAAA", "ssh-ed25519 AAAA", "ssh-ed25519 !"])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no Ed25519 key"):
        key_text(text)


def test_a_private_key_given_for_a_public_one_is_not_repeated() -> None:
    with pytest.raises(InvalidInputError, match="private key") as error:
        key_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA\n")
    assert "b3Blbn" not in str(error.value)


def test_a_file_of_allowed_signers_gives_names_and_keys() -> None:
    text = f"# ours\n\nann@x.org,bob {SIGNER.public_key} laptop\nold ssh-rsa AAAA\n"
    assert allowed_signers(text) == dict.fromkeys(("ann@x.org", "bob"), SIGNER.public_key)


@needs_ssh
def test_ssh_checks_what_we_signed_and_we_what_ssh_signed(tmp_path: Path) -> None:
    armor = textwrap.fill(base64.b64encode(SIGNATURE).decode(), 70)
    (tmp_path / "ours.sig").write_text(
        f"-----BEGIN SSH SIGNATURE-----\n{armor}\n-----END SSH SIGNATURE-----\n"
    )
    (tmp_path / "allowed").write_text(f"ann@x.org {SIGNER.public_key}\n")
    (tmp_path / "data").write_bytes(b"data")
    key_file(tmp_path / "key", KEY)
    told = ["-Y", "verify", "-f", "allowed", "-I", "ann@x.org", "-n", "tensorrepo"]
    subprocess.run(["ssh-keygen", *told, "-s", "ours.sig"], cwd=tmp_path, input=b"data", check=True)
    told = ["-Y", "sign", "-q", "-f", "key", "-n", "tensorrepo", "data"]
    subprocess.run(["ssh-keygen", *told], cwd=tmp_path, check=True)
    theirs = "".join((tmp_path / "data.sig").read_text().splitlines()[1:-1])
    assert base64.b64decode(theirs) == SIGNATURE
