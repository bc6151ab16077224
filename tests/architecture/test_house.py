"""Figures of the architecture that stay at nought: cycles, riddles, ambiguous names."""

from __future__ import annotations

from runpy import run_path

import pytest

from tests.support.architecture import house
from tests.support.architecture.sources import ROOT, Source, sources

RING = [
    Source("repo/a.py", "import tensorrepo.repo.b"),
    Source("repo/b.py", "if TYPE_CHECKING:\n    from tensorrepo.repo import c"),
    Source("repo/c.py", "def f():\n    from tensorrepo.repo.a import x"),
    Source("repo/d.py", "from tensorrepo.repo import a"),
]


def test_no_module_imports_itself_by_a_detour_for_typing_or_late() -> None:
    assert house.cycles(house.import_graph(sources())) == []


def test_no_module_opens_with_a_question() -> None:
    assert house.questions(sources()) == []


def test_a_public_type_means_one_thing_in_the_whole_project() -> None:
    assert house.shared_type_names(sources()) == {}


def test_a_cycle_of_typing_and_late_imports_is_found() -> None:
    names = [f"tensorrepo.repo.{name}" for name in "abc"]
    assert house.cycles(house.import_graph(RING)) == [names]


def test_the_table_of_lazy_names_closes_no_cycle() -> None:
    lazy = Source("tensorrepo/__init__.py", "from tensorrepo.datasets.stream import Mix")
    assert (
        house.cycles(
            house.import_graph([lazy, Source("tensorrepo/datasets/stream.py", "import tensorrepo")])
        )
        == []
    )


@pytest.mark.parametrize(
    "opening", ["What is it?", "Which of\nthem?", "Why? Because.", "How?\n\nSo."]
)
def test_a_question_is_found(opening: str) -> None:
    assert house.questions([Source("repo/x.py", f'"""{opening}"""')]) == ["repo/x.py"]


@pytest.mark.parametrize("opening", ["Page codec.", "Page codec.\n\nWhich, and why?"])
def test_a_noun_phrase_is_no_question(opening: str) -> None:
    assert house.questions([Source("repo/x.py", f'"""{opening}"""')]) == []


def test_a_type_that_two_modules_define_is_found() -> None:
    one, other = (
        Source("repo/a.py", "class A: ..."),
        Source("query/b.py", "class A: ...\nclass _B: ..."),
    )
    assert house.shared_type_names([one, other]) == {"A": ["repo/a.py", "query/b.py"]}


def test_a_module_of_one_sibling_is_found() -> None:
    assert house.of_one_sibling(house.import_graph(RING)) == [
        f"tensorrepo.repo.{each}" for each in ("b: tensorrepo.repo.a", "c: tensorrepo.repo.b")
    ]


def test_the_script_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    run_path(str(ROOT / ".ci/house"))
    assert f"{len(house.modules(sources()))} modules\n" in capsys.readouterr().out
