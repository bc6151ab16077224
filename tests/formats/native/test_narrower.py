"""What older machines run of the kernels that choose when they are loaded: the same results."""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorrepo.formats.native import coder, distances
from tests.formats.model.codecs.test_delta import in_both_ways, plane_of
from tests.formats.native.test_coder import some_symbols
from tests.formats.native.test_distances import KINDS
from tests.support.effort import sampled
from tests.support.native import needs_native, why_nothing_is_compiled

if TYPE_CHECKING:
    from tensorrepo.formats.native.distances import Numbers

SOURCES = Path(distances.__file__).parent
# What the compiler is told that a machine has; "avx512f"[3] is a 5.
MACHINES = {
    "plain": "0",
    "avx2": "(x[3] != 0x35 && __builtin_cpu_supports(x))",
}
pytestmark = [
    needs_native,
    pytest.mark.skipif(
        why_nothing_is_compiled() is not None, reason=str(why_nothing_is_compiled())
    ),
]


def built(machine: str, folder: Path) -> Any:
    """The codecs' module as such a machine would choose its paths."""
    target = folder / "_codecs.abi3.so"
    sources = [str(SOURCES / f"{name}.c") for name in ("codecs", "coder", "distances")]
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    options = ["-shared", "-fPIC", "-std=c11", "-pthread", "-DPy_LIMITED_API=0x030B0000"]
    told = f"-D__builtin_cpu_supports(x)={MACHINES[machine]}"
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [*compiler, *options, told, include, *sources, "-o", str(target)]
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
        for module in (distances, coder):
            patch.setattr(module, "codecs", codecs)
        yield request.param


@KINDS
@pytest.mark.parametrize("count", [1, 300, 4096, 5000, 9001])
def test_planes_decode_alike(machine: str, of: Numbers, count: int) -> None:  # noqa: ARG001
    assert distances.NATIVE is not None
    plane, frame, base = plane_of(of, count, count)
    out = np.zeros_like(base)
    assert distances.NATIVE.decode(plane, base, of, out)
    assert np.array_equal(out, frame)


@KINDS
@pytest.mark.parametrize("where", [0.01, 0.05, 0.3, 0.6, 0.98])
def test_damage_is_refused_alike(machine: str, of: Numbers, where: float) -> None:  # noqa: ARG001
    plane, _, base = plane_of(of, 6000, 7)
    damaged = plane.copy()
    damaged[int(where * plane.size)] ^= 0x10
    one, other = in_both_ways(damaged, base, of)
    assert (one is None) == (other is None)
    assert one is None or np.array_equal(one, other)


@KINDS
def test_distances_are_alike(machine: str, of: Numbers) -> None:  # noqa: ARG001
    assert distances.NATIVE is not None
    _, frame, base = plane_of(of, 3001, 5)
    found = [
        (*each.scan(frame, base, of), each.differ(frame, base, of), each.restore(frame, base, of))
        for each in (distances.NATIVE, distances.NUMPY)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("lanes", [coder.FEW_LANES, coder.MANY_LANES])
@pytest.mark.parametrize("size", [1, 33, 5000])
def test_symbols_are_packed_alike(machine: str, lanes: int, size: int) -> None:  # noqa: ARG001
    assert coder.NATIVE is not None
    table = np.full((1, coder.SYMBOLS), coder.TABLE // coder.SYMBOLS, np.uint16)
    symbols = some_symbols(size, size, 20.0)
    packed = coder.NATIVE.pack(symbols, None, table, lanes)
    out = np.empty_like(symbols)
    assert np.array_equal(packed, coder.NUMPY.pack(symbols, None, table, lanes))
    assert coder.NATIVE.unpack(packed, None, table, lanes, out)
    assert np.array_equal(out, symbols)
