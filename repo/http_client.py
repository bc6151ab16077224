"""httpx without its command line, and what proves servers to its clients, read once.

The command line of httpx brings click, rich and pygments: 0.2 s of the processor beside 0.03 for
all else. So httpx is imported from here, and its main says that it is not installed.
"""

from __future__ import annotations

import ssl
import sys
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

_COMMAND_LINE: Final = "httpx._main"
sys.modules.setdefault(_COMMAND_LINE, None)  # type: ignore[arg-type]  # None: there is none

import httpx  # noqa: E402

if sys.modules.get(_COMMAND_LINE) is None:
    del sys.modules[_COMMAND_LINE]

__all__ = ["USER_AGENT", "httpx", "verification"]

USER_AGENT: Final = "tensorrepo"  # to a service; which revision of it calls, another header says


def verification(url: str) -> ssl.SSLContext | bool:
    """What a client of `url` proves the server by, which it takes as ``verify``.

    A way without TLS, be it to the server or to a proxy, needs nothing.
    """
    if urlsplit(url).scheme.lower() == "http" and not getproxies():
        return False
    return _authorities(ssl.get_default_verify_paths())


# The environment may name other files from one client to the next. Each takes 50 ms to read.
@lru_cache(4)
def _authorities(_places: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    return httpx.create_ssl_context()
