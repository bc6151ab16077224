"""What codecs make of models that were really trained, beside BitX's and ZipNN's methods.

Cases `palette`, `rows`, `layers` and `bitpack` are data that these codecs are made for, beside what
would store it without them. Sizes elsewhere are of all weights of a model: ours frame by frame,
with all that is stored of a frame; BitX's method (XOR with the base, byte planes, zstd) frame by
frame too; ZipNN gets everything in one piece. Speeds are of one frame after the other of a large
tensor, by processor time, since other processes may be about; `encode` and `decode` are GB/s of
tensor on one core, the best round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest import mock

import numpy as np
import torch
import zstandard
from harness import SEED, Case, Options, Peer, Skipped
from model_cases import encoder, pairs
from model_cases.texts import COMMIT

from tensorrepo.formats.common.buffer_codecs import Codec, decode_buffer, encode_buffer
from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.delta import distances
from tensorrepo.formats.model.delta.frame_codec import FrameCodec, FrameShape
from tensorrepo.formats.model.delta.predictions import AdamParams
from tensorrepo.formats.model.delta.registry import ADAM, CODECS, DELTA, PALETTE, PLANES, ROWS

FRAME_ELEMENTS = 1 << 19
KINDS = ("transformer", "cnn")
DTYPES = {"F32": "float32", "BF16": "bfloat16"}
ZSTD_LEVELS = (1, 3)  # the better one counts


@cache
def trained() -> Path:
    """Where the trained models of this run lie; training takes a minute."""
    folder = Path(mkdtemp(prefix="model-pairs-"))
    pairs.make(folder)
    return folder


def weights(kind: str, step: int, dtype: str) -> list[Any]:
    """The bytes of each weight tensor."""
    arrays = pairs.load(trained(), kind, step)
    named = [array for name, array in arrays.items() if not name.startswith(("m/", "v/"))]
    bits = named if dtype == "F32" else [pairs.bf16(array) for array in named]
    return [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in bits]


def frames(tensor: Any, dtype: str) -> Iterator[Any]:
    size = FRAME_ELEMENTS * TYPES[dtype].block_bytes
    return (tensor[at : at + size] for at in range(0, tensor.size, size))


class Ours:
    """Encodes, decodes and compares; sums up bytes and seconds."""

    def __init__(self, codec: FrameCodec, params: bytes = b"") -> None:
        self.codec, self.params = codec, params
        self.raw = self.stored = 0
        self.encode = self.decode = 0.0

    def add(
        self, frame: Any, bases: Sequence[Any], dtype: str, row_bytes: int = 0, first_byte: int = 0
    ) -> None:
        about = FrameShape(TYPES[dtype], frame.size, row_bytes, first_byte, self.params)
        views, out = [base.data for base in bases], np.empty_like(frame)
        begun = time.process_time()
        planes = self.codec.encode(frame.data, views, about)
        between = time.process_time()
        assert planes is not None
        self.codec.decode(planes, views, about, out.data)
        ended = time.process_time()
        assert np.array_equal(out, frame)
        self.raw += frame.size
        self.stored += sum(plane.size_bytes for plane in planes)
        self.encode += between - begun
        self.decode += ended - between

    def add_all(self, tensors: Sequence[Any], bases: Sequence[Sequence[Any]], dtype: str) -> Ours:
        for each in zip(tensors, *bases, strict=True):
            for frame, *under in zip(*(frames(one, dtype) for one in each), strict=True):
                self.add(frame, under, dtype)
        return self


def bitx(tensors: Sequence[Any], bases: Sequence[Any], dtype: str) -> int:
    """Stored bytes: XOR, byte planes, zstd, each plane of each frame by itself."""
    found = []
    for level in ZSTD_LEVELS:
        packer, size = zstandard.ZstdCompressor(level=level), TYPES[dtype].block_bytes
        total = 0
        for tensor, base in zip(tensors, bases, strict=True):
            for frame, under in zip(frames(tensor, dtype), frames(base, dtype), strict=True):
                planes = np.ascontiguousarray((frame ^ under).reshape(-1, size).T)
                total += sum(min(len(packer.compress(plane)), plane.size) for plane in planes)
        found.append(total)
    return min(found)


def zipnn(options: Options, folder: Path, data: Any, dtype: str) -> dict[str, float]:
    """What ZipNN makes of these bytes: the best of the rounds."""
    (folder / "data").write_bytes(data.tobytes())
    with closing(Peer(options, "model_cases/peer_zipnn.py", folder)) as peer:
        asked = {"file": str(folder / "data"), "dtype": DTYPES[dtype]}
        found = [peer.ask("both", **asked) for _ in range(options.rounds)]
    return {key: min(each[key] for each in found) for key in ("bytes", "encode", "decode")}


def size_of_pair(kind: str, dtype: str, steps: tuple[int, int]) -> Case:
    def case(folder: Path, options: Options) -> dict[str, Any]:
        base, new = (weights(kind, step, dtype) for step in steps)
        ours = Ours(DELTA).add_all(new, [base], dtype)
        whole, under = np.concatenate(new), np.concatenate(base)
        theirs = zipnn(options, folder, whole ^ under, dtype)["bytes"]
        planes = bitx(new, base, dtype)
        return {
            "share_of_raw": round(ours.stored / ours.raw, 4),
            "bitx_share": round(planes / ours.raw, 4),
            "zipnn_xor_share": round(theirs / ours.raw, 4),
            "to_bitx": round(ours.stored / planes, 3),
            "to_zipnn_xor": round(ours.stored / theirs, 3),
        }

    return case


@cache
def tuned() -> Path:
    """Where the fine-tuned encoders lie, also for later runs: to make them takes some minutes."""
    if not (encoder.ENCODER / "model.safetensors").exists():
        raise Skipped("there is no .bench/encoder: model_cases/encoder.py says how to get it")
    # Models of other texts, or of another torch, are other ones.
    folder = encoder.ROOT / ".bench" / f"tuned-{COMMIT:.8}-torch-{torch.__version__}"
    folder.mkdir(exist_ok=True)
    encoder.make(folder)
    return folder


def bits_of(array: Any, dtype: str) -> Any:
    numbers = array if dtype == "F32" else pairs.bf16(array)
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)


def smallest(tensor: Any, base: Any, shape: tuple[int, ...], dtype: str) -> tuple[int, str]:
    """Stored bytes of a tensor in the codec of one base that stores it smallest, and its name."""
    row = tensor.size // shape[0] if len(shape) > 1 else 0
    found = []
    for codec in CODECS.values():
        if codec.bases != 1 or codec.base_type or not codec.fits(TYPES[dtype], shape):
            continue
        ours = Ours(codec)
        at = 0
        for frame, under in zip(frames(tensor, dtype), frames(base, dtype), strict=True):
            ours.add(frame, [under], dtype, row, at)
            at += frame.size
        found.append((ours.stored, codec.name))
    return min(found)


def size_of_encoder(dtype: str, steps: tuple[int | str, int | str]) -> Case:
    """The whole model; a tensor that did not change is stored already."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        old, new = (encoder.load(tuned(), step) for step in steps)
        was = {name: bits_of(array, dtype) for name, array in old.items()}
        now = {name: bits_of(array, dtype) for name, array in new.items()}
        by: dict[str, int] = {}
        for name, tensor in now.items():
            size, codec = 0, "same"
            if not np.array_equal(tensor, was[name]):
                size, codec = smallest(tensor, was[name], new[name].shape, dtype)
            by[codec] = by.get(codec, 0) + size
        raw, ours = sum(one.size for one in now.values()), sum(by.values())
        both = np.concatenate(list(now.values())) ^ np.concatenate(list(was.values()))
        theirs = zipnn(options, folder, both, dtype)["bytes"]
        planes = bitx(list(now.values()), list(was.values()), dtype)
        return {
            "share_of_raw": round(ours / raw, 4),
            "bitx_share": round(planes / raw, 4),
            "zipnn_xor_share": round(theirs / raw, 4),
            "to_bitx": round(ours / planes, 3),
            "to_zipnn_xor": round(ours / theirs, 3),
            "by_codec": {codec: round(size / raw, 4) for codec, size in by.items()},
            "pair": encoder.digest(old, new),
        }

    return case


def solo(kind: str, dtype: str) -> Case:
    def case(folder: Path, options: Options) -> dict[str, Any]:
        tensors = weights(kind, 200, dtype)
        ours = Ours(PLANES).add_all(tensors, [], dtype)
        theirs = zipnn(options, folder, np.concatenate(tensors), dtype)["bytes"]
        return {
            "share_of_raw": round(ours.stored / ours.raw, 4),
            "zipnn_share": round(theirs / ours.raw, 4),
            "to_zipnn": round(ours.stored / theirs, 3),
        }

    return case


def speed(codec: FrameCodec, dtype: str, steps: tuple[int, int]) -> Case:
    """GB/s a core; ZipNN's, of the XOR with the base where there is one, in the same run."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        base, new = (np.concatenate(weights("transformer", step, dtype)) for step in steps)
        bases = [[base]] * codec.bases
        data = new ^ base if codec.bases else new
        theirs = zipnn(options, folder, data, dtype)
        rounds = [Ours(codec).add_all([new], bases, dtype) for _ in range(options.rounds)]
        best = {key: min(getattr(each, key) for each in rounds) for key in ("encode", "decode")}
        return {
            **{f"{key}_gb": round(new.size / 1e9 / best[key], 2) for key in best},
            **{f"zipnn_{key}_gb": round(new.size / 1e9 / theirs[key], 2) for key in best},
        }

    return case


def adam_step(kind: str) -> Case:
    """A whole checkpoint one step after its base: weights and both moments, over their raw size."""

    def case(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
        old, new = (pairs.load(trained(), kind, step) for step in (200, 201))
        names = [name for name in new if not name.startswith(("m/", "v/"))]
        step = {"step": 201, "rate": pairs.TUNE_RATE, "betas": pairs.BETAS, "eps": pairs.EPS}
        rest: Any = {"decay": pairs.DECAY, "decoupled": True}
        second = Ours(ADAM, AdamParams("second-moment", **step, **rest).pack())
        weight = Ours(ADAM, AdamParams("weight", **step, **rest).pack())
        first, plain = Ours(DELTA), Ours(DELTA)
        for name in names:
            was, now = (
                [
                    np.ascontiguousarray(arrays[part + name]).reshape(-1).view(np.uint8)
                    for part in parts
                ]
                for arrays, parts in ((old, ("", "m/", "v/")), (new, ("", "m/", "v/")))
            )
            first.add_all(now[1:2], [was[1:2]], "F32")
            second.add_all(now[2:], [was[2:], was[1:2], now[1:2]], "F32")
            weight.add_all(now[:1], [was[:1], now[1:2], now[2:]], "F32")
            plain.add_all(now, [was], "F32")
        parts = first, second, weight
        return {
            "share_of_raw": round(sum(each.stored for each in parts) / plain.raw, 4),
            "with_deltas_alone": round(plain.stored / plain.raw, 4),
            "first_moment": round(first.stored / first.raw, 4),
            "second_moment": round(second.stored / second.raw, 4),
            "weights": round(weight.stored / weight.raw, 4),
        }

    return case


def least_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Processor time of the best round."""
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def figures(
    raw: Any, encode: Callable[[], Any], decode: Callable[[Any], Any], size: Any, rounds: int
) -> dict[str, float]:
    """Share of raw, and GB/s a core, of one way to store the bytes `raw`."""
    stored = encode()
    return {
        "share": round(size(stored) / raw.nbytes, 4),
        "encode_gb": round(raw.nbytes / 1e9 / least_seconds(encode, rounds), 2),
        "decode_gb": round(raw.nbytes / 1e9 / least_seconds(partial(decode, stored), rounds), 2),
    }


def of_codec(codec: FrameCodec, new: Any, base: Any, rounds: int) -> dict[str, float]:
    """What a frame codec makes of one F32 frame."""
    about = FrameShape(TYPES["F32"], new.nbytes, new.nbytes // len(new), 0)
    frame, out = new.reshape(-1).view(np.uint8), np.empty(new.nbytes, np.uint8)
    bases = [base.reshape(-1).view(np.uint8).data] * codec.bases
    result = figures(
        frame,
        partial(codec.encode, frame.data, bases, about),
        lambda planes: codec.decode(planes, bases, about, out.data),
        lambda planes: sum(plane.size_bytes for plane in planes),
        rounds,
    )
    assert np.array_equal(out, frame)
    return result


def of_zstd(data: Any, rounds: int) -> dict[str, float]:
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    data = data.reshape(-1).view(np.uint8)
    return figures(data, partial(packer.compress, data), unpacker.decompress, len, rounds)


def palette(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    """A frame of weights that were quantised to 16 values of F32."""
    rng = np.random.default_rng(SEED)
    values = rng.standard_normal(16, dtype="f4")
    frame = values[rng.integers(0, 16, (1024, 512))]
    rounds = options.rounds
    ours = {codec.name: of_codec(codec, frame, frame, rounds) for codec in (PALETTE, PLANES)}
    return {**ours, "zstd": of_zstd(frame, rounds)}


def moved_rows(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    """A frame of word vectors, of which one row in fifty moved."""
    rng = np.random.default_rng(SEED)
    base = rng.standard_normal((1024, 512), dtype="f4")
    frame = base.copy()
    moved = rng.choice(1024, 20, replace=False)
    frame[moved] *= 1 + 1e-3 * rng.standard_normal((20, 512), dtype="f4")
    rounds = options.rounds
    ours = {codec.name: of_codec(codec, frame, base, rounds) for codec in (ROWS, DELTA, PLANES)}
    xor = frame.view("u4") ^ base.view("u4")
    return {**ours, "zstd_of_xor": of_zstd(xor, rounds)}


def layers(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    """A frame of weights that were trained in BF16 and are kept in F32, against its base."""
    rng = np.random.default_rng(SEED)
    base = rng.standard_normal((1024, 512), dtype="f4")
    frame = base * (1 + 2e-2 * rng.standard_normal(base.shape, dtype="f4"))
    base, frame = ((each.view("u4") & 0xFFFF0000).view("f4") for each in (base, frame))
    rounds = options.rounds
    result = {"delta_with_layers": of_codec(DELTA, frame, base, rounds)}
    with mock.patch.object(distances, "layers_seem_better", return_value=False):
        result["delta_without"] = of_codec(DELTA, frame, base, rounds)
    return {**result, PLANES.name: of_codec(PLANES, frame, base, rounds)}


def bitpack(folder: Path, options: Options) -> dict[str, Any]:  # noqa: ARG001
    """A million token numbers of a vocabulary of 50,257, as 64-bit integers."""
    data = np.random.default_rng(SEED).integers(0, 50_257, 1 << 20).view(np.uint8)
    return {
        codec.name.lower(): figures(
            data,
            partial(encode_buffer, codec, data.data, 8),
            lambda stored, codec=codec: decode_buffer(codec, memoryview(stored), data.nbytes, 8),
            len,
            options.rounds,
        )
        for codec in (Codec.BITPACK, Codec.ZSTD, Codec.SHUFFLE_ZSTD)
    }


CASES: dict[str, Case] = {
    "palette": palette,
    "rows": moved_rows,
    "layers": layers,
    "bitpack": bitpack,
    **{
        f"delta_{kind}_{dtype}_{old}_{new}": size_of_pair(kind, dtype, (old, new))
        for kind in KINDS
        for dtype in DTYPES
        for old, new in pairs.PAIRS
    },
    **{
        f"delta_encoder_{dtype}_{old}_{new}": size_of_encoder(dtype, (old, new))
        for dtype in DTYPES
        for old, new in (*encoder.PAIRS, (0, encoder.ADAPTED))
    },
    **{f"solo_{kind}_{dtype}": solo(kind, dtype) for kind in KINDS for dtype in DTYPES},
    **{f"speed_delta_{dtype}": speed(DELTA, dtype, (200, 201)) for dtype in DTYPES},
    **{f"speed_planes_{dtype}": speed(PLANES, dtype, (200, 200)) for dtype in DTYPES},
    **{f"adam_{kind}": adam_step(kind) for kind in KINDS},
}
