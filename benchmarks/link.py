"""A bounded link: a network namespace of its own, and an S3 server in it that answers late.

The namespace's loopback is held to a rate by the kernel (`tc tbf`), and the server holds the first
byte of every answer back. The rate needs root; without it the link is not bounded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def namespace(mbit: int) -> Iterator[list[str]]:
    """What to put before a command so that it runs behind the link; nothing without root."""
    if os.geteuid() or shutil.which("ip") is None:
        yield []
        return
    name = f"tensorrepo-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        rate = ["rate", f"{mbit}mbit", "burst", "1mb", "limit", "64mb"]
        shape = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", *rate]
        subprocess.run([*inside, *shape], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@contextmanager
def server(root: Path, latency_ms: float, inside: list[str]) -> Iterator[str]:
    """The endpoint of an S3 server behind the link, with the folders of `root` as its buckets."""
    script = str(ROOT / "examples" / "s3_server.py")
    arguments = ["--root", str(root), "--port", "0", "--latency-ms", str(latency_ms)]
    process = subprocess.Popen(
        [*inside, sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
