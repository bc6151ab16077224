"""Checks that run while tests are collected, which takes one core: ``pytest --beside COMMAND``.

What they print is shown when they have ended, before the first test; where they fail no test runs.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Generator
from tempfile import TemporaryFile

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", default="", help="a command to run while tests are collected")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.beside and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ChecksBeside(config))


class ChecksBeside:
    """The plugin: a command that was started when it was made."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._command: str = config.option.beside
        self._printed = TemporaryFile()  # noqa: SIM115  it is closed as the session ends
        self._process = subprocess.Popen(
            shlex.split(self._command),
            cwd=config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
        )
        config.add_cleanup(self._end)

    def _end(self) -> None:
        self._process.kill()  # where it was not waited for
        self._process.wait()
        self._printed.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        ended = self._process.wait()
        self._printed.seek(0)
        with self._config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            terminal = self._config.get_terminal_writer()
            terminal.line()
            terminal.line(self._printed.read().decode(errors="replace").rstrip())
        if ended:
            session.shouldfail = f"{self._command} ended with {ended}, see above: no test was run"
            raise session.Failed(session.shouldfail)
        return (yield)
