"""Index of registered names: what refs say, kept in memory and brought up to date by what changed.

For servers, which are asked for one name a thousand times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.registry.versions import Registered, registered_in

NO_COMMIT: Final = Digest("0" * 64)


class RegistryIndex:
    """Versions and aliases by name, as of one view. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._refs: Mapping[str, Digest] = {}
        self._names: Mapping[str, Registered] = {}

    def known(self, view: LogView) -> Mapping[str, Registered] | None:
        """What is registered at `view`, where that takes no work; None: `at` finds it."""
        with self._lock:
            return self._names if self._generation == view.generation else None

    def at(self, view: LogView) -> Mapping[str, Registered]:
        """What is registered at `view`, or at a newer one that somebody asked for; by name."""
        with self._lock:
            if view.generation > self._generation:
                self._names = self._brought_to(view.state.refs)
                self._refs, self._generation = view.state.refs, view.generation
            return self._names

    def _brought_to(self, refs: Mapping[str, Digest]) -> Mapping[str, Registered]:
        if refs is self._refs:
            return self._names
        different = {ref for ref, _ in self._refs.items() ^ refs.items()}
        if not registered_in(dict.fromkeys(different, NO_COMMIT)):
            return self._names
        return registered_in(refs)
