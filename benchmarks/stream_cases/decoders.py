"""Which library decodes JPEGs of 500 x 375 and resizes them to 224 x 224 fastest?

    python benchmarks/stream_cases/decoders.py [--images N] [--rounds N]

Prints a table: processor time of a call, and calls a second on one and two threads, which tell
whether the interpreter lock is let go; medians of rounds taken in turns. Of what is resized, how
near it is to Pillow's antialiased pixels, in dB. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import numpy as np
import simplejpeg
from pictures import decoded, jpegs
from PIL import Image

SIZE = 224
BOX = (62.0, 0.0, 437.0, 375.0)  # the middle square
try:
    import cv2

    cv2.setNumThreads(1)
except ImportError:
    cv2 = None
try:
    import turbojpeg

    turbo = turbojpeg.TurboJPEG()
except (ImportError, RuntimeError, OSError):
    turbo = None

OUT = np.empty((375, 500, 3), np.uint8)
SMALL = np.empty((SIZE, SIZE, 3), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    images = list(jpegs(chosen.images))
    print(f"{len(images)} JPEGs 500 x 375 of {sum(map(len, images)) // len(images)} bytes")
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    pixels = [simplejpeg.decode_jpeg(each) for each in images]
    cases = [(name, do, images) for name, do in decoders().items()]
    cases += [(name, do, pixels) for name, do in resizers().items()]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _, _ in cases}
    for _ in range(chosen.rounds):
        for name, do, data in cases:
            rates = rate(do, data, 1), rate(do, data, 2)
            found[name].append((processor_us(do, data), *rates))
    print("| | µs of processor | /s, 1 thread | /s, 2 threads | dB |\n|---|---|---|---|---|")
    for name, do, data in cases:
        cpu, one, two = (statistics.median(each) for each in zip(*found[name], strict=True))
        near = "" if name.startswith("decode") else f"{min(99, nearness(do, data, pixels)):.1f}"
        print(f"| {name} | {cpu:,.0f} | {one:,.0f} | {two:,.0f} | {near} |")


PACKAGES = ("simplejpeg", "pillow", "opencv-python-headless", "PyTurboJPEG")


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def rate(do: Callable[[Any], object], data: list[Any], threads: int) -> float:
    """Calls a second."""
    parts = [data[part::threads] for part in range(threads)]

    def run(part: list[Any]) -> None:
        for each in part:
            do(each)

    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        list(pool.map(run, parts))
        return len(data) / (time.perf_counter() - begun)


def processor_us(do: Callable[[Any], object], data: list[Any]) -> float:
    """Of one call, on this thread."""
    begun = time.thread_time()
    for each in data:
        do(each)
    return (time.thread_time() - begun) / len(data) * 1e6


def nearness(do: Callable[[Any], Any], data: list[Any], pixels: list[np.ndarray]) -> float:
    """Peak signal to noise against Pillow's antialiased pixels."""
    errors = [
        np.mean((np.asarray(do(each), float) - _pillow_resize(whole)) ** 2)
        for each, whole in zip(data[:20], pixels, strict=False)
    ]
    return float(10 * np.log10(255**2 / max(np.mean(errors), 1e-9)))


def decoders() -> dict[str, Callable[[bytes], object]]:
    found: dict[str, Callable[[bytes], object]] = {
        "decode: simplejpeg": simplejpeg.decode_jpeg,
        "decode: simplejpeg into a buffer": lambda data: simplejpeg.decode_jpeg(
            data, buffer=np.empty((375, 500, 3), np.uint8)
        ),
        "decode: simplejpeg, fast DCT and upsampling": lambda data: simplejpeg.decode_jpeg(
            data, fastdct=True, fastupsample=True
        ),
        "decode: simplejpeg, scaled to >= 224": lambda data: simplejpeg.decode_jpeg(
            data, min_height=SIZE, min_width=SIZE
        ),
        "decode: simplejpeg, header": simplejpeg.decode_jpeg_header,
        "decode: pillow": lambda data: np.asarray(Image.open(io.BytesIO(data))),
        "both: pillow, draft, middle, antialiased": _pillow_both,
    }
    if cv2 is not None:
        found["decode: opencv"] = lambda data: cv2.imdecode(
            np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB
        )
        found["decode: opencv, half size"] = lambda data: cv2.imdecode(
            np.frombuffer(data, np.uint8), cv2.IMREAD_REDUCED_COLOR_2
        )
        found["both: simplejpeg + opencv linear behind three taps"] = decoded
        found["both: simplejpeg + opencv linear"] = lambda data: cv2.resize(
            simplejpeg.decode_jpeg(data)[:, 62:437], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR
        )
        found["both: simplejpeg + opencv area"] = lambda data: cv2.resize(
            simplejpeg.decode_jpeg(data)[:, 62:437], (SIZE, SIZE), interpolation=cv2.INTER_AREA
        )
    found["both: simplejpeg + pillow antialiased"] = lambda data: _pillow_resize(
        simplejpeg.decode_jpeg(data)
    )
    if turbo is not None:
        found["decode: PyTurboJPEG"] = turbo.decode
    return found


def _pillow_both(data: bytes) -> object:
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (SIZE, SIZE))
    scale = image.width / 500
    box = tuple(edge * scale for edge in BOX)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))


def _pillow_resize(pixels: np.ndarray) -> object:
    image = Image.fromarray(pixels)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=BOX))


def resizers() -> dict[str, Callable[[np.ndarray], object]]:
    found: dict[str, Callable[[np.ndarray], object]] = {
        "resize: pillow bilinear, antialiased": _pillow_resize,
        "resize: pillow bilinear, reducing first": lambda pixels: np.asarray(
            Image.fromarray(pixels).resize(
                (SIZE, SIZE), Image.Resampling.BILINEAR, box=BOX, reducing_gap=1.01
            )
        ),
    }
    if cv2 is not None:
        for name, how in (
            ("linear, not antialiased", cv2.INTER_LINEAR),
            ("area, antialiased", cv2.INTER_AREA),
            ("cubic, not antialiased", cv2.INTER_CUBIC),
        ):
            found[f"resize: opencv {name}"] = lambda pixels, how=how: cv2.resize(
                pixels[:, 62:437], (SIZE, SIZE), interpolation=how
            )
    return found


if __name__ == "__main__":
    main()
