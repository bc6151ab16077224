"""The examples of `examples/serving`, and settings that the guides name: each is one there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.api.server import check_listening
from tensorrepo.api.settings import PREFIX, Settings, make_settings
from tests.support.architecture.sources import ROOT

SERVING = ROOT / "examples/serving"
_SET = re.compile(rf"^(?: +|Environment=){PREFIX}(\w+)[:=] ?(.*?)(?: +#.*)?$", re.MULTILINE)


def _settings_in(name: str) -> dict[str, str]:
    text = (SERVING / name).read_text("utf-8")
    return {key: value.strip("'\"") for key, value in _SET.findall(text)}


@pytest.mark.parametrize("name", ["compose.yaml", "tensorrepo.service"])
def test_an_example_sets_what_there_is_to_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {key: value for key, value in _settings_in(name).items() if key != "FILE"}
    for key, value in told.items():
        monkeypatch.setenv(PREFIX + key, value.replace("${DOMAIN}", "example.org"))
    settings = make_settings()
    check_listening(settings)
    assert told
    assert {key.lower() for key in told} <= set(Settings.model_fields)
    assert str(settings.data) == told["DATA"]


@pytest.mark.parametrize("page", ["docs/guides/serving.md", "docs/guides/operating.md"])
def test_a_guide_names_settings_that_there_are(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(rf"{PREFIX}(\w+)", text)) - {"FILE"}
    unknown = {name for name in named if name.lower() not in Settings.model_fields}
    assert unknown == set()


def test_the_file_of_settings_in_the_guide_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/guides/serving.md").read_text("utf-8")
    block = text.partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "tensorrepo.toml"
    file.write_text(block)
    monkeypatch.setenv(f"{PREFIX}FILE", str(file))
    made: Any = make_settings()
    assert made.oidc_issuer == "https://example.com"
    assert made.oidc_create_users is True
