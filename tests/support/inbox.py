"""A webhook's other end."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Inbox:
    """A real HTTP server on this machine that keeps what is posted; answers `codes` first."""

    def __init__(self, *codes: int) -> None:
        self.posted: list[dict[str, Any]] = []
        left = list(codes)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                code = left.pop(0) if left else 200
                if code == 200:
                    self.posted.append(json.loads(body))
                handler.send_response(code)
                handler.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
