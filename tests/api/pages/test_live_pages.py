"""Pages of runs that go on: their streams end with the service."""

from __future__ import annotations

from pathlib import Path

import tensorrepo as tr
from tests.support.servers.service import running_service


def test_the_stream_of_a_run_ends_when_the_service_does(tmp_path: Path) -> None:
    with running_service(tmp_path, shutdown_seconds=300) as running, running.client() as client:
        place = running.service.directory.create("live").url
        repo = tr.open(place, author="Ann <ann@example.org>")
        with repo.run("long", system_seconds=None) as run:
            run.log_metric("loss", 1.0, 0)
            run.flush()
            with client.stream("GET", "/live/-/run-events/long") as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("retry")
                running.service.events.close()
                running.service.live_events.close()
                assert "event: end" not in list(lines)
