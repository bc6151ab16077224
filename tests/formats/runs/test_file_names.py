"""Names of files as paths of a tree, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.runs.file_names import file_name, tree_path, tree_paths
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import is_path


@pytest.mark.parametrize(
    "name",
    ["a.txt", "plots/loss by step.png", ".hidden/x", "-x", "nul.txt", "a_x25_b", "ü/ß.txt",
     "x%step%1.png", "end.", "_x", "__x", "a+b=c", "con"],
)  # fmt: skip
def test_a_name_is_a_path_and_comes_back(name: str) -> None:
    assert is_path(tree_path(name))
    assert file_name(tree_path(name)) == name


def test_a_plain_name_stays_as_it_is() -> None:
    assert tree_path("model/python_env.yaml") == "model/python_env.yaml"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_every_name_that_may_be_used_comes_back(name: str) -> None:
    try:
        path = tree_path(name)
    except InvalidInputError:
        return
    assert is_path(path)
    assert file_name(path) == name


SEGMENTS = st.sampled_from(["a", "A", "aB", "Ab", "ab", "_x41_", "\xe9", "\xc9"])


@given(st.sets(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), min_size=1))
def test_names_that_differ_only_in_case_are_told_apart(names: set[str]) -> None:
    files = {name for name in names if not any(one.startswith(f"{name}/") for one in names)}
    paths = tree_paths(files)
    assert {file_name(path): path for path in paths.values()} == paths
    lower = [path.lower() for path in paths.values()]
    assert len(set(lower)) == len(lower)
    assert not any(one.startswith(f"{other}/") for one in lower for other in lower)


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "a//b", "x" * 300, "/".join("a" * 20)])
def test_what_no_file_may_be_called_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        tree_path(name)
