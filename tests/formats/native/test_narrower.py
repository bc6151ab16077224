"""What older machines run of the kernels that choose when they are loaded: the same results."""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.native import delta_tokens, frequency_tables, rans, signatures
from tensorrepo.formats.native.delta_tokens import Numbers
from tests.formats.model.delta.test_distances import in_both_ways, plane_of
from tests.formats.native.test_delta_tokens import FORETOLD, KINDS, check_foretold
from tests.formats.native.test_frequency_tables import exponents, packed_in_steps
from tests.formats.native.test_rans import some_symbols
from tests.formats.native.test_signatures import nearest
from tests.support.architecture.sources import ROOT, project
from tests.support.builders.native import needs_native, why_nothing_is_compiled
from tests.support.effort import sampled

# What the compiler is told that a machine has; "avx512f"[3] is a 5.
MACHINES = {
    "plain": "0",
    "avx2": "(x[3] != 0x35 && __builtin_cpu_supports(x))",
}
pytestmark = [
    pytest.mark.long,  # the codecs are compiled again
    needs_native,
    pytest.mark.skipif(
        why_nothing_is_compiled() is not None, reason=str(why_nothing_is_compiled())
    ),
]


def built(machine: str, folder: Path) -> Any:
    """The codecs' module as such a machine would choose its paths."""
    target = folder / "_codecs.abi3.so"
    modules = project()["tool"]["setuptools"]["ext-modules"]
    (codecs,) = (one for one in modules if one["name"] == "tensorrepo.formats.native._codecs")
    sources = [str(ROOT / source) for source in codecs["sources"]]
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    options = ["-shared", "-fPIC", "-std=c11", "-pthread", "-DPy_LIMITED_API=0x030B0000"]
    told = f"-D__builtin_cpu_supports(x)={MACHINES[machine]}"
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [*compiler, *options, told, include, *sources, "-o", str(target), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    spec = spec_from_file_location("_codecs", target)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=sampled(list(MACHINES), 1))
def machine(request: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        codecs = built(request.param, folder)
        for module in (delta_tokens, frequency_tables, rans, signatures):
            patch.setattr(module, "codecs", codecs)
        yield request.param


@KINDS
@pytest.mark.parametrize("count", sampled([1, 300, 4096, 5000, 9001], 2))
def test_planes_decode_alike(machine: str, of: Numbers, count: int) -> None:  # noqa: ARG001
    assert delta_tokens.NATIVE is not None
    for is_long in (False, True):
        plane, frame, base = plane_of(of, count, count, is_long)
        out = np.zeros_like(base)
        assert delta_tokens.NATIVE.decode(plane, base, of, out, is_long)
        assert np.array_equal(out, frame)


@KINDS
@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("where", sampled([0.01, 0.05, 0.3, 0.6, 0.98], 2))
def test_damage_is_refused_alike(
    machine: str,  # noqa: ARG001
    of: Numbers,
    where: float,
    is_long: bool,
) -> None:
    plane, _, base = plane_of(of, 6000, 7, is_long)
    damaged = plane.copy()
    damaged[int(where * plane.size)] ^= 0x10
    one, other = in_both_ways(damaged, base, of, is_long)
    assert (one is None) == (other is None)
    assert one is None or np.array_equal(one, other)


@FORETOLD
def test_rows_decode_alike(machine: str, size: int, share: float, count: int) -> None:  # noqa: ARG001
    check_foretold(size, share, count)


@KINDS
def test_distances_are_alike(machine: str, of: Numbers) -> None:  # noqa: ARG001
    assert delta_tokens.NATIVE is not None
    _, frame, base = plane_of(of, 3001, 5)
    found = [
        (*each.scan(frame, base, of), each.differ(frame, base, of), each.restore(frame, base, of))
        for each in (delta_tokens.NATIVE, delta_tokens.NUMPY)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_nearest_signatures_are_alike(machine: str) -> None:  # noqa: ARG001
    assert signatures.NATIVE is not None
    words = np.random.default_rng(3).integers(0, 1 << 63, (50, 64)).astype(np.uint64)
    of = words, np.arange(50) % 5 > 0, 3
    assert nearest(signatures.NATIVE, *of) == nearest(signatures.NUMPY, *of)


@pytest.mark.parametrize("lanes", [rans.FEW_LANES, rans.MANY_LANES, rans.MOST_LANES])
@pytest.mark.parametrize("size", [1, 33, 65, 5000])
def test_symbols_are_packed_alike(machine: str, lanes: int, size: int) -> None:  # noqa: ARG001
    assert rans.NATIVE is not None
    table = np.full((1, rans.SYMBOLS), rans.TABLE // rans.SYMBOLS, np.uint16)
    symbols = some_symbols(size, size, 20.0)
    packed = rans.NATIVE.pack(symbols, None, table, lanes)
    out = np.empty_like(symbols)
    assert np.array_equal(packed, rans.NUMPY.pack(symbols, None, table, lanes))
    assert rans.NATIVE.unpack(packed, None, table, lanes, out)
    assert np.array_equal(out, symbols)


@pytest.mark.parametrize("others", [0, 9, 4000])
def test_exponents_are_packed_alike(machine: str, others: int) -> None:  # noqa: ARG001
    assert frequency_tables.NATIVE is not None
    plane = exponents(others)
    assert frequency_tables.NATIVE.pack(plane, plane.size) == packed_in_steps(plane)
