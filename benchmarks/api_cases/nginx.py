"""nginx over a folder: what downloads and uploads of the service are compared with."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness import Skipped

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; client_max_body_size 0; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2; uwsgi_temp_path {folder}/t3;
  scgi_temp_path {folder}/t4;
  server {{ listen 127.0.0.1:{port}; root {root}; {more}
            location / {{ dav_methods PUT DELETE; create_full_put_path on; }} }}
}}
user root;
"""


@contextmanager
def nginx(folder: Path, root: Path, more: str = "") -> Iterator[int]:
    """Its port, while it serves the files below `root`; `more` is configuration of the server."""
    folder.mkdir()
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, root=root, port=port, more=more))
    try:
        process = subprocess.Popen(["nginx", "-c", str(config)])
    except FileNotFoundError:
        raise Skipped("there is no nginx: apt-get install nginx-light") from None
    try:
        _wait(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait(port: int) -> None:
    for _ in range(500):
        with closing(socket.socket()) as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise Skipped("nginx does not start")
