"""A gateway that is never what is waited for: nginx where there is one, else the mock.

The mock is a Python program, and gives out some 2,000 pages a second on a core.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conveyor.testing.programs import free_port, mock_gateway

STARTS_WITHIN = 10.0  # seconds
CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/client; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  keepalive_timeout 3600s;
  open_file_cache max=10;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    root {folder};
    location / {{
      default_type text/html;
      try_files /page.html =404;
      add_header X-Request-Credits 1;
      add_header X-Request-Cost 0.0001;
      add_header X-Request-ID $request_id;
    }}
  }}
}}
"""


@contextmanager
def fast_gateway(folder: Path, size: int) -> Iterator[str]:
    """The address of a gateway that answers everything with a page of that size."""
    nginx = shutil.which("nginx")
    if nginx is None:
        with mock_gateway() as gateway:
            print("gateway: the mock; with nginx installed, it would not set the pace")
            yield gateway.url
        return
    (folder / "page.html").write_bytes(b"<p>a page</p>\n".ljust(size))
    with _running(nginx, folder) as url:
        print("gateway: nginx")
        yield url


@contextmanager
def _running(nginx: str, folder: Path) -> Iterator[str]:
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port))
    log = folder / "error.log"
    process = subprocess.Popen([nginx, "-p", str(folder), "-e", str(log), "-c", str(config)])
    try:
        if len(cores := os.sched_getaffinity(0)) > 1:
            os.sched_setaffinity(process.pid, {max(cores)})
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1/"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("nginx does not start")
