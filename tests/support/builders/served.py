"""A repository of a service with real data: digits, pictures, texts, files, and a secret branch."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

import tensorrepo as tr
from tests.support.servers.service import RunningService

NAME = "team/digits"
BASE = f"/api/v1/repositories/{NAME}/-"
ROWS = 1797
# Names and cells as somebody would write them who wants a page to run something.
HOSTILE = [
    "<script>alert(1)</script>",
    "../../etc/passwd",
    '"><img src=x onerror=alert(1)>',
    "a\r\nSet-Cookie: x=1",
    "javascript:alert(1)",
    "{{7*7}}",
]


@cache
def digits_of_sklearn() -> Any:
    """1,797 pictures of 8 by 8 pixels, and what they show."""
    from sklearn.datasets import load_digits  # takes two seconds, of each worker

    return load_digits()


def serve_digits(service: RunningService) -> tr.Repository:
    """Make the repository: two commits on main, one of them with a view, one more on `secret`."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": NAME}).raise_for_status()
    url = service.service.directory.find(NAME).url
    repo = tr.open(url, author="Ann <ann@example.org>")
    digits = digits_of_sklearn()
    with repo.transaction(message="digits") as tx:
        tx.create_dataset(
            "digits",
            {"image": digits.images.astype(np.uint8), "label": digits.target.astype(np.int64)},
        )
        tx.create_dataset(
            "pictures",
            {"photo": [_png(shade) for shade in range(6)], "words": HOSTILE},
            columns={"photo": tr.Image("png"), "words": tr.Text()},
        )
        tx.save_file("notes.html", b"<script>alert(1)</script>" * 1000)
    with repo.transaction(message="threes") as tx:
        tx.create_view("threes", "SELECT row_id FROM digits WHERE label = 3")
    repo.create_branch("secret")
    with repo.transaction("secret", message="hidden") as tx:
        tx.create_dataset("hidden", {"x": [41, 42]})
    return repo


def _png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (320, 200), (shade * 40, 80, 120)).save(file, "PNG")
    return file.getvalue()
