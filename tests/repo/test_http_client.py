"""httpx as clients of a service have it: without its command line, its authorities read once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

LOADED = """
import json, sys
import tensorrepo.repo.backends.service, httpx
print(json.dumps([httpx.main.__module__, sorted(sys.modules)]))
"""
# `SSL_CERT_FILE` names the file that is read anyway: it is another name for it.
CLIENTS = """
import json, os, ssl
import certifi
from tensorrepo.repo.http_client import verification

made = []
create = ssl.create_default_context
ssl.create_default_context = lambda *args, **more: made.append(more) or create(*args, **more)
os.environ.pop("SSL_CERT_FILE", None)
first, second = verification("https://example.org"), verification("https://example.com/c")
plain = verification("http://127.0.0.1:8000")
os.environ["SSL_CERT_FILE"] = certifi.where()
other = verification("https://example.org")
print(json.dumps([first is second, other is first, plain, len(made)]))
"""


def _told(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_a_client_of_a_service_loads_no_command_line_of_httpx() -> None:
    module, loaded = _told(LOADED)
    assert module == "httpx"
    assert {"click", "httpx._main", "pygments", "rich"} & set(loaded) == set()


def test_clients_share_what_proves_servers_until_the_environment_names_another_file() -> None:
    assert _told(CLIENTS) == [True, False, False, 2]
