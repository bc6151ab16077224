"""Codecs of model tensors: size and speed, against BitX's method and against ZipNN.

    make bench-env
    python benchmarks/bench_codecs.py [case ...] [--rounds N] [--peers .bench/bin/python]

One JSON line for each case. The models are trained first (model_cases/pairs.py), which takes a
minute; needs the extras `torch` and `demo`.
"""

from __future__ import annotations

from harness import run
from model_cases import codecs

if __name__ == "__main__":
    run(codecs.CASES, "Measure codecs of model tensors.", rounds=3)
