"""ONNX files: initialisers as tensors, data beside the file, graphs, and hostile ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.exchange.checkpoints.file_tensors import RangeFile
from tensorrepo.formats.exchange.checkpoints.models import export_model, read_model
from tensorrepo.formats.exchange.checkpoints.onnx import read_onnx, write_onnx
from tensorrepo.formats.model.graph.onnx_file import (
    ONNX_TYPES,
    OnnxConstant,
    OnnxGraph,
    graph_of,
    parse_graph,
    scan_onnx,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders import model_files
from tests.support.builders.models import stored


def saved(path: Path, *initializers: Any, **tensor: Any) -> Path:
    """A model of these initialisers, or of one `w` with fields changed."""
    made = list(initializers)
    if tensor:
        made.append(numpy_helper.from_array(np.arange(6, dtype="f4").reshape(2, 3), "w"))
    graph = helper.make_graph([], "g", [], [], made)
    model = helper.make_model(graph)
    for name, value in tensor.items():
        each = model.graph.initializer[-1]
        if name == "dims":
            del each.dims[:]
            each.dims.extend(value)
        else:
            setattr(each, name, value)
    path.write_bytes(model.SerializeToString())
    return path


def test_types_are_those_of_the_library() -> None:
    names = {number: onnx.TensorProto.DataType.Name(number) for number in ONNX_TYPES}
    assert names[17] == "FLOAT8E4M3FN"
    sizes = {
        number: helper.tensor_dtype_to_np_dtype(number).itemsize
        for number in ONNX_TYPES
        if TYPES[ONNX_TYPES[number]].block_elements == 1
    }
    assert sizes == {number: TYPES[ONNX_TYPES[number]].block_bytes for number in sizes}


def test_initialisers_are_those_that_the_library_reads(tmp_path: Path) -> None:
    model = stored(read_onnx(model_files.write_onnx(tmp_path / "m.onnx")))
    theirs = {each.name: each for each in model_files.onnx_model().graph.initializer}
    del theirs["words"], theirs["four"]
    assert set(model.keys()) == {*theirs, "four"}
    assert all(
        np.array_equal(model[name], numpy_helper.to_array(each)) for name, each in theirs.items()
    )
    assert model["four"].tolist() == [0xE1, 0x83]  # 1, -2, 3, -8, the first one lowest


def test_what_stays_in_the_graph_is_told(tmp_path: Path) -> None:
    source = read_onnx(model_files.write_onnx(tmp_path / "m.onnx"))
    assert len(source.notes) == 1
    assert "'words' stays in the graph" in source.notes[0]


def test_what_the_model_says_of_itself_is_metadata(tmp_path: Path) -> None:
    metadata = read_onnx(model_files.write_onnx(tmp_path / "m.onnx")).metadata["onnx"]
    assert (metadata["producer"], metadata["graph"]) == ("tests", "tiny")
    assert set(metadata["opset"]) == {"ai.onnx"}


def test_data_beside_the_file_comes_out_beside_it(tmp_path: Path) -> None:
    path = model_files.write_onnx_outside(tmp_path / "m.onnx")
    model = stored(read_model(path))
    assert np.array_equal(model["layer.0.weight"], model_files.ARRAYS["layer.0.weight"])
    (tmp_path / "out").mkdir()
    export_model(model, tmp_path / "out/other.onnx")
    assert (tmp_path / "out/other.onnx").read_bytes() == path.read_bytes()
    assert (tmp_path / "out/weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()


def test_data_beside_the_file_is_not_overwritten(tmp_path: Path) -> None:
    model = stored(read_model(model_files.write_onnx_outside(tmp_path / "m.onnx")))
    (tmp_path / "weights.bin").write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        write_onnx(model, tmp_path / "other.onnx")
    assert (tmp_path / "weights.bin").read_bytes() == b"mine"
    assert not (tmp_path / "other.onnx").exists()


def test_a_failed_export_leaves_no_data_behind(tmp_path: Path) -> None:
    model = stored(read_model(model_files.write_onnx_outside(tmp_path / "m.onnx")))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/m.onnx").write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        write_onnx(model, tmp_path / "out/m.onnx")
    assert os.listdir(tmp_path / "out") == ["m.onnx"]


def outside(path: Path, location: str, **facts: str) -> Path:
    """A model whose only initialiser lies at `location`."""
    tensor = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=1)
    for key, value in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=value)
    return saved(path, tensor)


@pytest.mark.parametrize(
    "location",
    ["../secret", "/etc/passwd", "sub/../../secret", "..\\secret", ".", "..", "a/../../secret"],
)
def test_data_outside_of_the_folder_is_never_read(location: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    with pytest.raises(InvalidInputError, match="not in its folder"):
        read_model(outside(tmp_path / "in/m.onnx", location))


def test_links_to_data_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    (tmp_path / "in/link").symlink_to(tmp_path / "secret")
    (tmp_path / "in/folder").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match=r"folder|link"):
        read_model(outside(tmp_path / "in/m.onnx", "link"))
    with pytest.raises(InvalidInputError, match="not in its folder"):
        read_model(outside(tmp_path / "in/m.onnx", "folder/secret"))


def test_missing_data_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"weights\.bin.*missing"):
        read_model(outside(tmp_path / "m.onnx", "weights.bin"))


@pytest.mark.parametrize(
    "facts",
    [
        {"offset": "1"}, {"offset": "-1"}, {"offset": "x"}, {"length": "25"}, {"length": "8"},
        {"offset": str(1 << 70)},
    ],
)  # fmt: skip
def test_data_that_lies_elsewhere_than_it_says_is_refused(
    facts: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(bytes(24))
    with pytest.raises(InvalidInputError, match="'w'"):
        read_onnx(outside(tmp_path / "m.onnx", "data", **facts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_data": bytes(23)}, "24 bytes, 23 are there"),
        ({"dims": [3, 3]}, "36 bytes"),
        ({"dims": [-1]}, "no shape"),
        ({"dims": [1] * 65}, "no shape"),
        ({"name": ""}, "name of its own"),
    ],
)
def test_an_initialiser_that_lies_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_onnx(saved(tmp_path / "m.onnx", **change))


@pytest.mark.parametrize("change", [{"data_type": 99}, {"dims": [1 << 40, 1 << 40]}])
def test_an_initialiser_that_is_no_tensor_here_stays_in_the_graph(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path / "m.onnx", **change)
    source = read_onnx(path)
    assert not source.tensors
    assert "'w' stays in the graph" in source.notes[0]


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    twice = [numpy_helper.from_array(np.ones(3, "f4"), "w")] * 2
    with pytest.raises(InvalidInputError, match="name of its own"):
        read_onnx(saved(tmp_path / "m.onnx", *twice))


def test_values_that_their_type_lacks_are_refused(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[1], int32_data=[300])
    with pytest.raises(InvalidInputError, match="I8"):
        read_onnx(saved(tmp_path / "m.onnx", tensor))


def test_fewer_values_than_elements_are_refused(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT64, dims=[3], int64_data=[1, 2])
    with pytest.raises(InvalidInputError, match="2 values"):
        read_onnx(saved(tmp_path / "m.onnx", tensor))


def test_a_new_file_passes_the_library_s_checker(tmp_path: Path) -> None:
    arrays = dict(model_files.ARRAYS)
    write_onnx(stored(arrays), tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model)
    found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_a_graph_is_read_with_its_nodes(tmp_path: Path) -> None:
    graph = parse_graph(
        RangeFile(model_files.write_onnx(tmp_path / "m.onnx"), "ONNX file"), "m.onnx"
    )
    assert [node.op for node in graph.nodes] == ["Reshape", "Gemm", "Constant", "Softmax"]
    gemm = graph.nodes[1]
    assert gemm.inputs == ("r", "layer.0.weight", "layer.0.bias")
    assert gemm.outputs == ("y",)
    assert gemm.attributes == {"alpha": 0.5, "transB": 1}
    assert graph.nodes[3].attributes == {"axis": -1}
    constant = graph.nodes[2].attributes["value"]
    assert isinstance(constant, OnnxConstant)
    assert (constant.type, constant.shape) == ("F32", (2,))
    (given_input,) = graph.inputs
    assert (given_input.name, given_input.type, given_input.shape) == ("x", "F32", ("batch", 32))
    assert graph.outputs[0].shape is None


@pytest.mark.parametrize("write", [model_files.write_onnx, model_files.write_onnx_outside])
def test_a_stored_graph_is_that_of_the_file(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    assert graph_of(stored(read_onnx(path))) == parse_graph(RangeFile(path, "ONNX file"), "m.onnx")


def test_a_model_of_another_format_has_no_onnx_graph() -> None:
    assert graph_of(stored({"w": np.ones(3)})) is None


def test_graphs_in_nodes_are_graphs(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])],
        "then",
        [],
        [helper.make_tensor_value_info("o", 1, [1])],
        [numpy_helper.from_array(np.ones(1, "f4"), "w")],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([node], "g", [], [])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(outer), path)
    then = parse_graph(RangeFile(path, "ONNX file"), "m.onnx").nodes[0].attributes["then_branch"]
    assert isinstance(then, OnnxGraph)
    assert (then.name, then.initializers, then.nodes[0].op) == ("then", ("w",), "Identity")


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, start: int, size: int) -> bytes:
        assert 0 <= start <= start + size <= self.size, "nothing beyond the end is asked for"
        return self.data[start : start + size]


SMALL = model_files.onnx_model().SerializeToString()


@given(st.data())
def test_a_damaged_file_is_refused_or_lies_within_itself(data: st.DataObject) -> None:
    changed = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(SMALL) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    try:
        found = scan_onnx(Bytes(bytes(changed[:cut])), "x")
    except InvalidInputError:
        return
    assert all(0 <= each.start <= each.stop <= cut for each in found.initializers)
