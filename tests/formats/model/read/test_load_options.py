"""What a load is asked for is checked before anything is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.models import stored

MODEL = stored({"w": np.linspace(-1, 1, 40, dtype="f4").reshape(8, 5)})


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"dtype": "float99"}, "dtype 'float99': expected a type of floating-point numbers"),
        ({"dtype": "int8"}, "that numpy knows"),
        ({"dtype": object}, "that numpy knows"),
        ({"dtype": "float99", "output": "torch"}, "that torch knows"),
        ({"dtype": 3, "output": "torch"}, "that torch knows"),
        ({"dtype": "int8", "output": "torch"}, "that torch knows"),
        ({"device": "nowhere", "output": "torch"}, "device 'nowhere'"),
        ({"device": 3.5, "output": "torch"}, "device 3.5: no device"),
        ({"device": "cpu"}, "output='torch'"),
        ({"planes": 0}, "planes=0: expected at least 1"),
        ({"planes": 1.5}, "planes=1.5"),
        ({"planes": "2"}, "planes='2'"),
        ({"planes": True}, "planes=True"),
        ({"shard": (0, 0)}, r"shard \(0, 0\)"),
        ({"shard": "abc"}, "shard 'abc'"),
        ({"shard": 3}, "shard 3"),
        ({"shard": (0, 0.0, 2)}, "rank < world"),
        ({"shard": (-1, 0, 2)}, "rank < world"),
        ({"names": 3}, "names=3"),
        ({"names": [3]}, "names=.3.: expected names of tensors"),
    ],
)
def test_what_cannot_be_is_told_in_our_words(wish: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        MODEL.load(**wish)


@pytest.mark.parametrize("dtype", ["float16", np.float16, "torch.float16", np.dtype("f2")])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_type_may_be_called_as_numpy_and_torch_do(dtype: Any, output: Any) -> None:
    pytest.importorskip(output)
    found = MODEL.load(dtype=dtype, output=output)["w"]
    assert str(found.dtype).removeprefix("torch.") == "float16"


def test_bfloat16_is_converted_to_what_numpy_has() -> None:
    torch = pytest.importorskip("torch")
    values = torch.linspace(-1, 1, 40).bfloat16()
    model = stored({"w": values})
    found = model.load(dtype="float32")["w"]
    assert found.dtype == np.float32
    assert np.array_equal(found, values.float().numpy())
    assert model.load()["w"].dtype == np.uint16
