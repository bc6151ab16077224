"""A service for the tests of this folder, one for each module: it starts in a tenth of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running
