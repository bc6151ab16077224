"""Model files as the libraries that own their formats write them, and by hand where none does."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

RNG = np.random.default_rng(7)
ARRAYS: dict[str, Any] = {
    "layer.0.weight": RNG.normal(size=(16, 32)).astype("f4"),
    "layer.0.bias": RNG.normal(size=16).astype("f4"),
    "steps": np.array(3, "i4"),
}
QUANTISED = (
    gguf.GGMLQuantizationType.Q4_0,
    gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.Q4_K,
    gguf.GGMLQuantizationType.Q6_K,
    gguf.GGMLQuantizationType.IQ4_XS,
)


def write_safetensors(path: Path) -> Path:
    save_file(ARRAYS, path, {"format": "pt"})
    return path


def write_gguf(path: Path) -> Path:
    """Two kinds of numbers, several of blocks, and a vocabulary too long to be metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_float32("llama.rope.freq_base", 10_000.0)
    writer.add_array("tokenizer.ggml.tokens", [f"token {at}" for at in range(200)])
    writer.add_array("short", [1, 2, 3])
    writer.add_tensor("layer.0.weight", ARRAYS["layer.0.weight"])
    writer.add_tensor("layer.0.bias", ARRAYS["layer.0.bias"])
    for kind in QUANTISED:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = RNG.integers(0, 256, (3, 512 // elements * size), np.uint8)
        writer.add_tensor(f"q.{kind.name}", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def onnx_model(*, nodes: bool = True) -> Any:
    """Initialisers as raw bytes and in each typed field, under a small graph."""
    initializers = [
        numpy_helper.from_array(ARRAYS["layer.0.weight"], "layer.0.weight"),
        helper.make_tensor(
            "layer.0.bias", TensorProto.FLOAT, [16], ARRAYS["layer.0.bias"].tolist()
        ),
        helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 32]),
        helper.make_tensor("half", TensorProto.FLOAT16, [3], [1, 2, 3.5]),
        helper.make_tensor("small", TensorProto.INT8, [3], [1, -2, 3]),
        helper.make_tensor("large", TensorProto.UINT64, [2], [1, (1 << 64) - 1]),
        helper.make_tensor("four", TensorProto.INT4, [4], [1, -2, 3, -8]),
        helper.make_tensor("wide", TensorProto.DOUBLE, [1], [0.5]),
        helper.make_tensor("words", TensorProto.STRING, [1], [b"no tensor"]),
    ]
    made = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], name="reshape"),
        helper.make_node(
            "Gemm", ["r", "layer.0.weight", "layer.0.bias"], ["y"], transB=1, alpha=0.5
        ),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(2, "f4"))),
        helper.make_node("Softmax", ["y"], ["z"], axis=-1),
    ]
    graph = helper.make_graph(
        made if nodes else [],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        initializers,
    )
    return helper.make_model(graph, producer_name="tests")


def write_onnx(path: Path) -> Path:
    onnx.save(onnx_model(), path)
    return path


def write_onnx_outside(path: Path, location: str = "weights.bin") -> Path:
    """The same with its larger tensors in a file beside it."""
    onnx.save(onnx_model(), path, save_as_external_data=True, location=location, size_threshold=32)
    return path


def write_torch(path: Path) -> Path:
    """A checkpoint of training, one tensor a view of another."""
    import torch

    torch.manual_seed(7)
    module = torch.nn.Linear(32, 16)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state | {"view": module.weight.detach().t()}, path)
    return path


def write_npz(path: Path) -> Path:
    np.savez(path, **ARRAYS, fortran=np.asfortranarray(ARRAYS["layer.0.weight"]))
    return path


def write_packed_npz(path: Path) -> Path:
    np.savez_compressed(path, **ARRAYS, big=ARRAYS["layer.0.bias"].astype(">f4"))
    return path


def write_npy(path: Path) -> Path:
    np.save(path, ARRAYS["layer.0.weight"])
    return path


def gguf_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_file(
    pairs: bytes = b"",
    tensors: bytes = b"",
    *,
    counts: tuple[int, int] = (0, 0),
    version: int = 3,
    data: bytes = b"",
    padding: int = 32,
) -> bytes:
    """A GGUF file from its parts: `counts` are those of tensors and of pairs."""
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + pairs + tensors
    return head + bytes(-len(head) % padding if padding else 0) + data


def gguf_tensor(
    name: bytes, dims: tuple[int, ...], kind: int, offset: int = 0, rank: int | None = None
) -> bytes:
    head = gguf_text(name) + struct.pack("<I", len(dims) if rank is None else rank)
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def gguf_pair(key: bytes, kind: int, value: bytes) -> bytes:
    return gguf_text(key) + struct.pack("<I", kind) + value
