"""What the doctor measures of the way to the broker, and what that means for a run."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from urllib.parse import unquote, urlsplit

from broker.client import proxy_for
from broker.connection import Connection
from broker.credentials import CredentialsInvalid
from broker.errors import BrokerUnfit, BrokerUnreachable, BrokerUrlInvalid, LinkDown
from broker.probe import Probe, probe
from broker.urls import servers
from eventlog.blobs import BlobStore
from eventlog.errors import AtollError, BlobError
from eventlog.log import EventLog
from leases.view import View
from ops.connect import broker_url, connected, identity, opened
from ops.doctor.findings import Finding
from ops.doctor.permitted import permitted
from ops.folded import folded
from ops.home import Home
from ops.numbers import size
from ops.output import Reach
from outer.waiting import span

MAX_OFFSET_S = 2.0
LONG_TRIP_S = 0.5
CERTIFICATE_S = 30 * 86400.0
_ANSWER_S = 10.0
_MAX_LINE_BYTES = 1 << 20  # a server's first line names its fellows
CODEC_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "4-bit": 0.5, "top-k": 4 / 140}  # a parameter


async def look(broker: Reach, run: str | None) -> AsyncIterator[Finding]:
    """Everything about the link, and about a run where one is named. What cannot be had is a
    finding, not an error."""
    try:
        known = identity(broker)
        url = broker_url(broker.url, Home.find(), known)
        for finding in tls(url, known.tls() if known else None):
            yield finding
        async with _reached(broker, run) as (connection, log, blobs):
            measured = await probe(connection, run)
            yield _reach(connection.url, measured)
            yield _clock(measured, run)
            yield await permitted(connection, run)
            if log is None or blobs is None:
                yield _rates(measured, None)
                return
            async with folded(log, "doctor") as projection:
                view = View(projection.db)
                yield _run(view)
                down = await _down(blobs, view)
                yield _rates(measured, down)
                yield exchange(view, measured.up_bytes_per_s, down)
    except (BrokerUnreachable, BrokerUnfit, BrokerUrlInvalid, LinkDown, AtollError) as error:
        near = BrokerUnreachable | LinkDown | CredentialsInvalid  # this side of any run
        kind = "reach" if run is None or isinstance(error, near) else "run"
        why = "sites and coordinator talk to the broker, and to nobody else"
        todo = "mend that first; then ask the doctor again"
        if isinstance(error, LinkDown) and run is None:
            todo = "name a run, which credentials may be limited to; " + todo
        yield Finding(kind, "bad", str(error), why, todo)


@asynccontextmanager
async def _reached(
    broker: Reach, run: str | None
) -> AsyncIterator[tuple[Connection, EventLog | None, BlobStore | None]]:
    if run is None:
        async with await connected(broker, "doctor") as connection:
            yield connection, None, None
        return
    async with opened(run, broker, "doctor") as (log, blobs, connection):
        yield connection, log, blobs


def tls(url: str, trust: ssl.SSLContext | None = None) -> Iterator[Finding]:
    """Of each server that is to be reached over TLS: whether its certificate is trusted, by the
    authority that the credentials name or else by this machine's own, and until when. A NATS server
    first speaks in the clear, so its line is read before."""
    why = "an expired or untrusted certificate cuts every site off at once"
    for one in servers(url).urls:
        parts = urlsplit(one)
        if parts.scheme not in ("tls", "wss"):
            continue
        host, port = parts.hostname or "", parts.port or 0
        try:
            ends_s = _certificate(host, port, parts.scheme == "tls", trust)
        except (OSError, ValueError) as error:
            todo = "see whether the broker runs, and whether the way to it is open: proxy, tunnel"
            if isinstance(error, ssl.SSLCertVerificationError | ValueError):
                todo = "give the CA to this machine's trust store, or see to the certificate"
            yield Finding("tls", "bad", f"TLS with {host}:{port} fails: {error}", why, todo)
            continue
        left_s = ends_s - time.time()
        what = f"the certificate of {host}:{port} is trusted, for {span(left_s)} more"
        todo = "renew it" if left_s < CERTIFICATE_S else ""
        yield Finding("tls", "note" if todo else "good", what, why, todo, {"left_s": left_s})


def _certificate(host: str, port: int, in_clear_first: bool, trust: ssl.SSLContext | None) -> float:
    """Raises OSError, ValueError."""
    with _way(host, port, proxied=not in_clear_first) as sock:
        if in_clear_first:
            _line(sock)  # INFO {...}
        context = trust or ssl.create_default_context()
        with context.wrap_socket(sock, server_hostname=host) as secured:
            found = secured.getpeercert() or {}
            return ssl.cert_time_to_seconds(str(found["notAfter"]))


def _way(host: str, port: int, *, proxied: bool) -> socket.socket:
    """A connection, by the way that the client takes: its websockets follow HTTPS_PROXY. Raises
    OSError."""
    proxy = urlsplit(proxy_for("wss", host) or "") if proxied else urlsplit("")
    if not proxy.hostname:
        return socket.create_connection((host, port), timeout=_ANSWER_S)
    headers = {}
    if proxy.username:
        secret = b64encode(unquote(f"{proxy.username}:{proxy.password or ''}").encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {secret}"
    asked = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=_ANSWER_S)
    asked.set_tunnel(host, port, headers)
    try:
        asked.connect()
    except (OSError, http.client.HTTPException) as error:
        asked.close()
        raise OSError(f"the proxy {proxy.hostname}: {error}") from error
    return cast(socket.socket, asked.sock)


def _line(sock: socket.socket) -> bytes:
    """What comes up to the end of a line, and no byte more. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte or len(line) > _MAX_LINE_BYTES:
            raise ConnectionError("it hung up, or spoke what is not asked for")
        line += byte
    return line


def _reach(url: str, found: Probe) -> Finding:
    trip = found.round_trip_s
    what = f"the broker at {url} answers, a round trip is {trip * 1e3:.3g} ms"
    why = "claims are made ahead, so a slow link costs no training; it slows decisions"
    todo = "look at the route: half a second is long even across the world"
    slow, measured = trip > LONG_TRIP_S, {"round_trip_s": trip}
    return Finding("reach", "note" if slow else "good", what, why, todo if slow else "", measured)


def _clock(found: Probe, run: str | None) -> Finding:
    why = "no rule reads a clock; ages and times on screens do"
    offset = found.clock_offset_s
    if offset is None:
        what = "the broker's clock is not known" + ("" if run else ": name a run")
        return Finding("clock", "note", what, why, "atoll doctor RUN" if not run else "")
    what = (
        f"the broker's clock is {abs(offset):.3g} s {'ahead of' if offset > 0 else 'behind'} ours"
    )
    bad = abs(offset) > max(MAX_OFFSET_S, found.round_trip_s)
    todo = "run an NTP client on whichever is wrong" if bad else ""
    return Finding("clock", "note" if bad else "good", what, why, todo, {"offset_s": offset})


def _rates(found: Probe, down: float | None) -> Finding:
    up = found.up_bytes_per_s
    what = f"up {size(up)}/s over one connection (blobs take four)"
    what += f", down {size(down)}/s" if down else "; down is measured with a run's blob: name one"
    why = "a round sends a delta up and fetches an update"
    measured = {"up_bytes_per_s": up, "down_bytes_per_s": down}
    return Finding("rates", "good", what, why, "", measured)


def _run(view: View) -> Finding:
    """How the run stands, with its configuration, which holds no secret."""
    run, config = view.run(), view.config()
    what = f"run {run.name} is {run.state}, at version {run.version}"
    if run.state != "finished":  # none says good-bye then
        what += f", with {run.live} live site{'s' * (run.live != 1)}"
    why = "what follows is about this run"
    return Finding("run", "good", what, why, "", {"config": config.model_dump(mode="json")})


async def _down(blobs: BlobStore, view: View) -> float | None:
    """By fetching the newest update, else the initial parameters; None where neither is there."""
    newest = view.version(view.run().version)
    for blob in (newest.update_blob if newest else None, view.run().parameters_blob):
        if blob is None:
            continue
        with TemporaryDirectory(prefix="atoll-doctor-") as folder:
            target, began = Path(folder) / "blob", time.perf_counter()
            try:
                async with asyncio.timeout(120):
                    await blobs.get(blob, target)
            except (BlobError, TimeoutError):
                continue
            return target.stat().st_size / max(time.perf_counter() - began, 1e-6)
    return None


def exchange(view: View, up: float, down: float | None) -> Finding:
    """How long an exchange of this run takes over this link, beside what the run waits for."""
    config, run = view.config(), view.run()
    delta, update = _sizes(view)
    takes_s = delta / up + (update / down if down else 0.0)
    limit_s = config.limits.transfer_s
    what = f"an exchange of run {run.name} takes about {span(takes_s)}: {size(delta)} up" + (
        f", {size(update)} down" if down else "; the way down is not known"
    )
    why = f"with overlap = {config.outer.overlap!r} a site " + (
        "trains on meanwhile" if config.outer.overlap == "delayed" else "stands still meanwhile"
    )
    measured = {"seconds": takes_s, "up_bytes": delta, "down_bytes": update}
    if takes_s > limit_s:
        todo = f"it is given up after {limit_s:g} s: fewer bits, or a larger limits.transfer_s"
        return Finding("exchange", "bad", what, why, todo, measured)
    if takes_s > limit_s / 4:
        todo = "consider overlap, or a codec of fewer bits (docs/codecs.md)"
        return Finding("exchange", "note", what, why, todo, measured)
    return Finding("exchange", "good", what, why, "", measured)


def _sizes(view: View) -> tuple[float, float]:
    """Bytes of a delta and of an update: the last ones, else by codec and parameters."""
    config, run = view.config(), view.run()
    ask = view.db.execute
    delta = ask("SELECT num_bytes FROM deltas ORDER BY seq DESC LIMIT 1").fetchone()
    update = ask("SELECT update_bytes FROM versions ORDER BY version DESC LIMIT 1").fetchone()
    by_codec = (CODEC_BYTES[name] for name in (config.outer.delta_codec, config.outer.update_codec))
    guess = [run.num_parameters * bytes_ for bytes_ in by_codec]
    return (delta[0] if delta else guess[0], update[0] if update else guess[1])
