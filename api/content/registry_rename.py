"""Other names of registered models, for one caller."""

from __future__ import annotations

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.registry import RegisteredModelInfo, card_ref, get_model
from tensorrepo.repo.registry.versions import SPACE, rename_registered


def rename_model(access: RepositoryAccess, name: str, new: str) -> RegisteredModelInfo:
    """Call a registered model something else: its versions, aliases and words go with it.

    Raises:
        NotFoundError: there is no such model.
        ConflictError: something is registered as `new`, or an alias is protected.
    """
    for one in (name, new):
        access.require(Action.WRITE, f"{SPACE}{one}/*")
        access.require(Action.WRITE, card_ref(one))
    get_model(access, name)
    rename_registered(access.core, name, new, actor=access.caller.author)
    return get_model(access, new)
