"""What this user's settings say of signatures and checks: keys, trusted signers, commands.

The command of a check stands here and nowhere else: never in a repository, which others write.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from tensorrepo.connect import Machine, read_config
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import CheckRun, ClientPolicy
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.signatures import SshSigner, allowed_signers
from tensorrepo.repo.log.branch_rules import BRANCHES

KEY_VARIABLE = "TENSORREPO_SIGNING_KEY"
PASSPHRASE_VARIABLE = "TENSORREPO_SIGNING_PASSPHRASE"  # noqa: S105  the name of a variable
CHECK_PREFIX = "check."
_LAST_LINES = 20  # of what a failed check printed


def with_policy(
    core: RepositoryCore,
    machine: Machine,
    workspace_config: Path | None = None,
    *,
    sign: bool = False,
) -> RepositoryCore:
    """`core` with what the user's settings, and the workspace's before them, say.

    `sign` signs what is made through it whether or not the settings say so.
    """
    settings = read_config(machine.config_file)
    if workspace_config is not None:
        settings |= read_config(workspace_config)
    variable = machine.environment.get(KEY_VARIABLE)
    key = variable or settings.get("user.signingkey")
    always = variable or settings.get("commit.sign", "false") == "true"
    if sign and not key:
        raise InvalidInputError(
            "there is no key to sign with: `ssh-keygen -t ed25519` makes one, and `tensorrepo "
            f"config user.signingkey FILE`, or {KEY_VARIABLE}, names it"
        )
    signer = None
    if key and (sign or always):
        path = machine.path(key) if not key.startswith("~") else machine.home / key[1:].lstrip("/")
        signer = cache(partial(SshSigner.load, path, partial(_passphrase, machine, path)))
    listed = settings.get("signers.file")
    return replace(
        core,
        policy=ClientPolicy(
            signer,
            None if listed is None else _allowed(machine, listed),
            _check_runner(core, machine, settings),
        ),
    )


def _passphrase(machine: Machine, path: Path) -> str:
    told = machine.environment.get(PASSPHRASE_VARIABLE)
    if told is None:
        raise InvalidInputError(
            f"{path} is encrypted: set {PASSPHRASE_VARIABLE} to its passphrase, or name a key "
            "without one"
        )
    return told


def _allowed(machine: Machine, listed: str) -> Mapping[str, str]:
    path = machine.path(str(Path(listed).expanduser()))
    try:
        return allowed_signers(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise NotFoundError(
            f"signers.file names {path}, which cannot be read ({why}). `tensorrepo config "
            "signers.file FILE` names another, --unset none"
        ) from error


def _check_runner(
    core: RepositoryCore, machine: Machine, settings: Mapping[str, str]
) -> Callable[[CheckRun], None]:
    def run(check: CheckRun) -> None:
        command = settings.get(CHECK_PREFIX + check.name)
        branch = check.ref.removeprefix(BRANCHES)
        if command is None:
            raise PermissionDenied(
                f"branch {branch!r} needs the check {check.name!r}, and nothing on this machine "
                f"says what that runs. Nothing was changed. `tensorrepo config "
                f"{CHECK_PREFIX}{check.name} COMMAND` says it."
            )
        told = {
            "TENSORREPO_URL": core.url,
            "TENSORREPO_BRANCH": branch,
            "TENSORREPO_BASE": check.base or "",
            "TENSORREPO_COMMIT": check.head,
        }
        # A shell, as the user's own setting is a line of one. Nothing of a repository is in it.
        done = subprocess.run(  # noqa: S602
            command,
            shell=True,
            check=False,
            cwd=machine.cwd,
            env={**machine.environment, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            lines = done.stdout.decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
            raise PermissionDenied(
                f"the check {check.name!r} of branch {branch!r} failed with exit code "
                f"{done.returncode} on commit {check.head:.12}. Nothing was changed."
                + "".join(f"\n  {line}" for line in lines)
            )

    return run


def check_setting(key: str) -> bool:
    """Whether `key` is the setting of a check's command."""
    return re.fullmatch(re.escape(CHECK_PREFIX) + r"[A-Za-z0-9._-]+", key) is not None
