"""Workspaces of a new user, and stores of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.object_stores import Bucket, s3_on_moto
from tests.tensorrepo.conftest import _committed, empty, full, shell

__all__ = ["_committed", "empty", "full", "shell"]


@pytest.fixture(scope="session")
def moto() -> Iterator[Bucket]:
    """S3 and STS as moto understands them, with one bucket."""
    with s3_on_moto() as made:
        yield made
