"""What a nats-server says of itself over HTTP, on its own machine."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request

# The proxy that a cluster's environment names (http_proxy) must not be asked for this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, timeout_s: float) -> bytes:
    """The body of a good answer, asked for directly. Raises OSError where there is none."""
    try:
        with _direct.open(url, timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from error


def said(error: OSError) -> str:
    """What a monitor answered in place of a good answer: /healthz says what is wrong."""
    if isinstance(error, urllib.error.HTTPError):
        try:
            answer = json.loads(error.read())
            return str(answer.get("error") or answer.get("status") or error)
        except (ValueError, AttributeError, OSError):
            return str(error)
    return str(error)
