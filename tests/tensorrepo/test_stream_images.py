"""Images decoded by a stream of the SDK, in this process and in one of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorrepo as tr

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
from collections.abc import Callable

from tests.support.builders.pictures import jpeg, smooth
from tests.support.processes.forked import fork_streams

COUNT, BROKEN = 40, 17
RANDOM = tr.Decode(size=24, fit="random", flip=True)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> tr.Dataset:
    repo = tr.init(tmp_path_factory.mktemp("store") / "r", author="Ada <ada@example.org>")
    photos = [jpeg(smooth(40, 50, seed=at)) for at in range(COUNT)]
    photos[BROKEN] = photos[BROKEN][:-400]
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("photos", columns={"photo": tr.Image("jpeg"), "label": "int64"})
        draft.append({"photo": photos, "label": np.arange(COUNT)})
    return repo.dataset("photos")


@pytest.fixture
def pixels(ds: tr.Dataset) -> Callable[..., dict[int, np.ndarray]]:
    def read(output: str = "numpy", **loading: Any) -> dict[int, np.ndarray]:
        found = ds.stream(
            batch_size=8,
            decode=RANDOM,
            loading=tr.Loading(on_error="skip", **loading),
            seed=3,
            output=output,  # type: ignore[arg-type]
        )
        rows = {
            row: np.asarray(batch["photo"][at])
            for batch in found
            for at, row in enumerate(batch.rows.tolist())
        }
        assert found.stats().skipped == {"image": 1}
        assert f":{BROKEN}, column 'photo'" in found.stats().bad[0]
        return rows

    return read


@pytest.mark.parametrize("output", ["numpy", pytest.param("torch", marks=pytest.mark.soak)])
def test_a_process_of_its_own_decodes_the_same_pixels(
    pixels: Callable[..., dict[int, np.ndarray]], output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    fork_streams(monkeypatch)
    expected = pixels()
    found = pixels(workers="process", output=output)
    assert sorted(found) == sorted(expected) == [at for at in range(COUNT) if at != BROKEN]
    assert all((found[at] == expected[at]).all() for at in expected)


def test_a_damaged_image_is_named_by_its_lasting_id(ds: tr.Dataset) -> None:
    with pytest.raises(tr.CorruptError, match="column 'photo'") as caught:
        list(ds.stream(batch_size=8, decode=RANDOM))
    assert f"id {ds.row_ids([BROKEN])[0]}" in str(caught.value)


def test_ids_of_skipped_rows_find_them_again(ds: tr.Dataset) -> None:
    asked: list[str] = []

    def note(_: Exception, row_id: str) -> None:
        asked.append(row_id)

    list(ds.stream(batch_size=8, decode=RANDOM, loading=tr.Loading(on_error=note)))
    assert ds.rows_by_id(asked).tolist() == [BROKEN]
