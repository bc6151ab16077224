"""A service for the tests of this folder, one for each module: it starts in a tenth of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher

from tensorrepo.api.access import passwords
from tests.support.servers.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _passwords_cost_little(request: pytest.FixtureRequest) -> Iterator[None]:
    """A hash takes a tenth of a second, but where tests are about just that."""
    costs = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_passwords"):
            patch.setattr(passwords, "_COSTS", costs)
        yield
