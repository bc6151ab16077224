from __future__ import annotations

from typing import Any

import pytest

from tensorrepo.formats.exchange.imagery.yamlsubset import parse_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: [cat, 'a, b', \"d#g\"]  # two", {"names": ["cat", "a, b", "d#g"]}),
        ("names: ['cat',\n  'dog',\n]\nnc: 2", {"names": ["cat", "dog"], "nc": "2"}),
        ("names:\n- cat\n- dog  # last", {"names": ["cat", "dog"]}),
        ("names:\n  - cat\n  - dog", {"names": ["cat", "dog"]}),
        ("names:\n  0: cat\n  1: traffic light", {"names": {"0": "cat", "1": "traffic light"}}),
        ("names: {0: cat, 1: dog}", {"names": {"0": "cat", "1": "dog"}}),
        ("---\npath: ../x/y\n\ntrain: images/train", {"path": "../x/y", "train": "images/train"}),
        ("train:\nval: 'it''s'", {"train": "", "val": "it's"}),
        ("download: https://example.org/a.zip", {"download": "https://example.org/a.zip"}),
        ("", {}),
    ],
)
def test_what_data_files_use_is_read(text: str, expected: dict[str, Any]) -> None:
    assert parse_yaml(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "names: &a [cat]",
        "names: !!python/object:os.system x",
        "text: |\n  several\n  lines",
        "names: [[a], [b]]",
        "names:\n  - cat\n    - dog",
        "a: 1\na: 2",
        "just words",
        "names: [cat",
        "  indented: 1",
        'a: "x\\n"',
    ],
)
def test_other_yaml_is_refused_and_not_half_understood(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d"):
        parse_yaml(text)
