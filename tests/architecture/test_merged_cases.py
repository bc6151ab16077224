"""Cases of a test that are one item of pytest: none is left out, and each that fails is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.merged_cases import cases_of, merge

SAID: list[tuple[int, str]] = []


@pytest.mark.parametrize(
    "number",
    [
        1,
        pytest.param(2, marks=pytest.mark.skipif(False, reason="it is there")),
        pytest.param(3, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(("name", "fails"), [("a", False), ("b", True)])
def checked(number: int, name: str, *, fails: bool) -> None:
    SAID.append((number, name))
    assert not fails


@pytest.mark.parametrize("name", ["a", "b"])
def written(name: str, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    (tmp_path / name).touch()


def test_all_cases_run_but_those_of_a_soak_and_each_that_fails_is_named() -> None:
    SAID.clear()
    cases = cases_of(checked)
    assert cases is not None
    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as caught:
        merge(checked, cases)()
    assert sorted(SAID) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes == [
        ["in the case name='b', fails=True, number=1"],
        ["in the case name='b', fails=True, number=2"],
    ]


def test_one_that_fails_is_the_error_itself() -> None:
    with pytest.raises(AssertionError) as caught:
        merge(checked, [{"number": at, "name": "a", "fails": at == 7} for at in (6, 7, 8)])()
    assert caught.value.__notes__ == ["in the case number=7, name='a', fails=True"]


def test_each_case_has_a_folder_of_its_own(tmp_path: Path) -> None:
    cases = cases_of(written)
    assert cases is not None
    merge(written, cases)(tmp_path=tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("[ab]")) == ["a", "b"]


def test_where_all_cases_are_skipped_so_is_the_test() -> None:
    def skipped(at: int) -> None:
        pytest.skip(f"not here, {at}")

    with pytest.raises(pytest.skip.Exception, match="not here, 1"):
        merge(skipped, [{"at": 1}, {"at": 2}])()


def test_where_some_cases_are_skipped_that_is_told() -> None:
    def skipped(at: int) -> None:
        if at > 1:
            pytest.skip(f"not here, {at}")

    with pytest.warns(pytest.PytestWarning, match="2 of 3 cases were skipped: not here, 2"):
        merge(skipped, [{"at": 1}, {"at": 2}, {"at": 3}])()


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.parametrize("at", [1, 2], indirect=True),
        pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.xfail)]),
        pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.skipif(True))]),
        pytest.mark.parametrize("at", iter([1, 2])),
        pytest.mark.xfail,
    ],
)
def test_what_pytest_itself_has_to_see_is_left_to_it(mark: pytest.MarkDecorator) -> None:
    def plain(at: int) -> None:
        raise NotImplementedError(at)

    assert cases_of(mark(plain)) is None
