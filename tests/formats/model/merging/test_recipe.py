from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.merging.recipe import make_recipe, recipe_of, with_recipe
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.models import stored

ONE, TWO, BASE = "1" * 64, "2" * 64, "3" * 64


def test_a_recipe_comes_back_from_metadata() -> None:
    recipe = make_recipe("ties", (ONE, TWO), base=BASE, weights=(1, 0.5), density=0.3, scale=0.7)
    model = stored({"w": np.zeros(3)}, metadata=with_recipe({"a": 1, "recipe": "older"},
                                                            recipe.to_json()))  # fmt: skip
    assert recipe_of(model.manifest) == recipe
    assert model.metadata["a"] == 1


def test_weights_are_equal_unless_given() -> None:
    assert make_recipe("average", (ONE, TWO)).weights == (0.5, 0.5)
    assert make_recipe("task-arithmetic", (ONE, TWO), base=BASE).weights == (1, 1)


@pytest.mark.parametrize(
    ("method", "parents", "given", "told"),
    [
        ("median", (ONE, TWO), {}, "no method 'median'"),
        ("average", (ONE,), {}, "2 or more"),
        ("slerp", (ONE, TWO, BASE), {}, "takes two"),
        ("ties", (ONE,), {}, "needs a base"),
        ("average", (ONE, TWO), {"base": BASE}, "takes no base"),
        ("average", (ONE, TWO), {"weights": (1,)}, "as many finite weights"),
        ("average", (ONE, TWO), {"weights": (1, float("nan"))}, "finite"),
        ("average", (ONE, TWO), {"weights": (0, 0)}, "not all 0"),
        ("average", (ONE, TWO), {"weights": (1e308, 1e308)}, "sum of the weights"),
        ("slerp", (ONE, TWO), {"weights": (2, -1)}, "not negative"),
        ("ties", (ONE,), {"base": BASE, "density": 0}, "density"),
        ("ties", (ONE,), {"base": BASE, "density": 1.5}, "density"),
        ("ties", (ONE,), {"base": BASE, "scale": float("inf")}, "scale"),
    ],
)
def test_what_no_method_does_is_refused(
    method: str, parents: tuple[str, ...], given: Any, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        make_recipe(method, parents, **given)


@pytest.mark.parametrize("recipe", [None, "text", {"verb": "construct"}])
def test_a_model_that_was_not_blended_has_none(recipe: Any) -> None:
    model = stored({"w": np.zeros(3)}, metadata={} if recipe is None else {"recipe": recipe})
    assert recipe_of(model.manifest) is None


@pytest.mark.parametrize(
    "recipe",
    [
        {"method": 1},
        {"method": "ties", "parents": []},
        {"method": "average", "parents": [ONE, TWO], "extra": 1},
    ],
)
def test_a_recipe_that_is_none_is_damage(recipe: Any) -> None:
    model = stored({"w": np.zeros(3)}, metadata={"recipe": recipe})
    with pytest.raises(CorruptError, match="recipe"):
        recipe_of(model.manifest)
