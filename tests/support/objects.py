"""A server that speaks S3, on this machine."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def object_storage() -> Iterator[dict[str, str]]:
    """moto's server on a free port, with one bucket, `runs`; the environment that leads there."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    request = urllib.request.Request(f"{url}/runs", method="PUT")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/x")
    urllib.request.urlopen(request).close()
    yield {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "not-for-the-log",
        "AWS_REGION": "us-east-1",
    }
    server.stop()
