"""Metrics are plotted, and lineage is drawn, without a backend of matplotlib being chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.runs.metrics import thinned
from tensorrepo.sdk import init
from tests.support.processes.shell import ADA

pytest.importorskip("matplotlib")
PRICE = r"$\frac{loss"  # broken, were it taken for mathematics


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    """A repository with two runs; `_late` and `exp1` logged a loss, a run made a model."""
    place = tmp_path_factory.mktemp("trained")
    repository = init(place / "store", author=ADA)
    with repository.transaction(message="Data") as tx:
        tx.create_dataset("points", columns={"x": "int64"}).append({"x": [1, 2, 3]})
    for name in ("exp1", "_late"):
        with repository.run(name) as run:
            run.use(repository.dataset("points"))
            for step in range(20):
                run.log_metrics({"loss": 1 / (step + 1), PRICE: float(step)}, step)
            run.save_model(f"net-{name}", {"w": np.zeros(3, "f4")})
    return repository


def test_a_run_is_plotted_with_a_panel_for_each_metric(trained: tr.Repository) -> None:
    figure = trained.runs()["exp1"].plot()
    assert [panel.get_title() for panel in figure.axes] == [PRICE, "loss"]
    assert figure._repr_png_().startswith(b"\x89PNG")  # which is what a notebook shows


def test_runs_are_compared_in_one_panel_with_a_legend(trained: tr.Repository) -> None:
    (panel,) = trained.runs().plot("loss", x="seconds", log=True).axes
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["_late", "exp1"]
    assert len(panel.lines) == 2
    assert panel.get_yscale() == "log"


def test_a_plot_goes_into_axes_that_are_given(trained: tr.Repository) -> None:
    from matplotlib.figure import Figure

    own = Figure()
    assert trained.runs()["exp1"].plot("loss", axes=own.add_subplot()) is own
    with pytest.raises(tr.InvalidInputError, match="one metric where axes are given"):
        trained.runs()["exp1"].plot("loss", PRICE, axes=own.axes[0])


def test_a_metric_that_was_not_logged_is_told_with_those_there_are(trained: tr.Repository) -> None:
    with pytest.raises(tr.NotFoundError, match=r"'accuracy'.*loss"):
        trained.runs().plot("accuracy")
    with pytest.raises(tr.NotFoundError, match=r"'accuracy'.*loss"):
        trained.runs()["exp1"].plot("accuracy")


@pytest.mark.soak
def test_no_backend_is_chosen_and_no_figure_stays_open(trained: tr.Repository) -> None:
    code = (
        "import sys, tensorrepo as tr\n"
        f"repo = tr.open({str(trained.url)!r})\n"
        "repo.runs()['exp1'].plot('loss').savefig(sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    target = Path(trained.url).parent / "loss.svg"
    subprocess.run([sys.executable, "-c", code, str(target)], check=True)
    assert ET.parse(target).getroot().tag.endswith("svg")


def test_a_thinned_line_keeps_its_extremes_and_ends() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    values[70_123], values[5] = 99.0, np.nan
    shown = thinned(values, 400)
    assert len(shown) <= 400
    assert np.nanmax(values[shown]) == 99.0
    assert np.nanmin(values[shown]) == np.nanmin(values)
    assert (shown[0], shown[-1]) == (0, 99_999)


def test_lineage_is_drawn_as_svg_that_stands_alone(trained: tr.Repository, tmp_path: Path) -> None:
    drawing = trained.lineage("models/net-exp1").draw(tmp_path / "net.svg")
    root = ET.parse(tmp_path / "net.svg").getroot()
    words = " ".join(text for text in root.itertext())
    assert {"net-exp1", "exp1", "points"} <= set(words.split())
    assert "prefers-color-scheme" in words
    assert "prefers-color-scheme" not in drawing._repr_html_()  # a notebook has its own colors


def test_lineage_is_drawn_as_png(trained: tr.Repository, tmp_path: Path) -> None:
    from PIL import Image

    drawing = trained.lineage("models/net-exp1").draw(tmp_path / "net.png")
    with Image.open(tmp_path / "net.png") as image:
        assert image.size == drawing.size
        assert len(image.convert("L").getcolors() or ()) > 10


def test_a_file_that_is_there_is_not_overwritten(trained: tr.Repository, tmp_path: Path) -> None:
    (tmp_path / "net.svg").write_text("mine")
    with pytest.raises(tr.InvalidInputError, match="exists already"):
        trained.lineage("models/net-exp1").draw(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text() == "mine"
    with pytest.raises(tr.InvalidInputError, match=r"\.svg or \.png, got \.gif"):
        trained.lineage("models/net-exp1").draw(tmp_path / "net.gif")


def test_a_lineage_that_fits_no_drawing_is_refused(
    trained: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.query.drawing.lineage.MOST_DRAWN", 2)
    with pytest.raises(tr.InvalidInputError, match="depth=2"):
        trained.lineage("models/net-exp1").draw()
