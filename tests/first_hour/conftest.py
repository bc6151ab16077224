"""Workspaces of a new user."""

from tests.tensorrepo.conftest import _committed, empty, full, shell

__all__ = ["_committed", "empty", "full", "shell"]
