"""A reading as Prometheus metrics, and the endpoint that serves them.

Names and units follow Prometheus' own rules (https://prometheus.io/docs/practices/naming/): prefix
`atoll_`, base units, totals end in `_total`. The endpoint's threads see readings only, which never
change: the fold stays with the thread that makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, get_args, get_type_hints

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eventlog.errors import AtollError
from eventlog.events import SiteDeparted
from ops.alarm.reading import Reading, SiteReading

STATES = ("running", "paused", "stopping", "finished")
# All of them from the start: a series that begins with its first event has no increase there.
DELTAS = ("undecided", "cut", "merged", "refused", "void")
DEPARTURES: tuple[str, ...] = get_args(get_type_hints(SiteDeparted)["code"])


class EndpointFailed(AtollError):
    """The metrics cannot be served where they were asked for."""


@dataclass(slots=True, eq=False)
class Readings(Collector):
    """Serves the newest reading; `newest` is replaced as a whole."""

    newest: Reading | None = None
    failed_alerts: int = 0

    def collect(self) -> Iterator[Metric]:
        """All metrics of the newest reading; none before the first."""
        if self.newest is not None:
            yield from families(self.newest)
            failed = "Alerts that could be told to nobody."
            yield _counter("alerts_failed", failed, self.newest.run, self.failed_alerts)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint."""

    readings: Readings
    url: str
    server: Any

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def serve(host: str, port: int) -> Endpoint:
    """Serve metrics at http://host:port/metrics; port 0 takes a free one. Raises EndpointFailed."""
    registry, readings = CollectorRegistry(), Readings()
    registry.register(readings)
    ProcessCollector(registry=registry)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        why = error.strerror or error
        raise EndpointFailed(f"metrics cannot be served at {host}:{port}: {why}") from error
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(readings, f"http://{shown}:{server.server_port}/metrics", server)


def families(reading: Reading) -> Iterator[Metric]:
    """Every metric of a reading."""
    run, around = reading.run, reading.around
    yield _family(
        GaugeMetricFamily, "build_info", "The atoll that coordinates.", run,
        {(_version(),): 1}, ("version",),
    )  # fmt: skip
    states = {(state,): int(reading.state == state) for state in STATES}
    yield _family(GaugeMetricFamily, "run_state", "1 for the run's state.", run, states, ("state",))
    for name, text, value in (
        ("log_sequence", "Last event that was folded.", reading.sequence),
        ("coordinator_term", "Event that elected the coordinator.", reading.term),
        ("coordinator_leading", "1 where this process coordinates, 0 on standby.", around.leads),
        ("round", "Newest round.", reading.round),
        ("version", "Newest committed version.", reading.version),
        ("version_age_seconds", "Time without a new version while running.", around.version_age_s),
        ("progress_ratio", "Share of the target that is done.", reading.share),
        (
            "target_tokens",
            "Tokens to be merged; none for a target in rounds.",
            reading.target_tokens,
        ),
        ("training_loss_nats", "Loss a token of the newest version's training.", reading.loss),
        ("heldout_perplexity", "Of the newest version evaluated.", reading.perplexity),
        ("sites_live", "Sites that take part.", len(reading.live)),
        ("broker_up", "1 while the broker answers.", around.broker_away_s is None),
    ):
        if value is not None:
            yield _family(GaugeMetricFamily, name, text, run, {(): float(value)}, ())
    for name, text, total in (
        ("merged_tokens", "Tokens merged into the model.", reading.merged_tokens),
        ("blocks_granted", "Blocks leased to sites.", reading.granted),
        ("blocks_reclaimed", "Blocks taken back.", reading.reclaimed),
        ("blocks_stolen", "Blocks moved before they were started.", reading.stolen),
        ("blocks_quarantined", "Blocks given up.", reading.quarantined),
        ("update_bytes", "Bytes of merged updates.", reading.update_bytes),
        ("snapshot_bytes", "Bytes of snapshots.", reading.snapshot_bytes),
        ("broker_breaks", "Breaks of this process's link.", around.broker_breaks),
    ):
        yield _counter(name, text, run, total)
    blocks = {(state,): num for state, num in reading.blocks.items()}
    text = "Blocks of open epochs by state."
    yield _family(GaugeMetricFamily, "blocks", text, run, blocks, ("state",))
    deltas = {(state,): reading.deltas.get(state, 0) for state in DELTAS}
    text = "Deltas by what became of them."
    yield _family(GaugeMetricFamily, "deltas", text, run, deltas, ("state",))
    gone = {(code,): reading.departures.get(code, 0) for code in DEPARTURES}
    text = "Departures by code."
    yield _family(CounterMetricFamily, "departures", text, run, gone, ("code",))
    yield from _sites(run, reading.sites)
    if around.disk is not None:
        for name, num in (("free", around.disk.free_bytes), ("size", around.disk.size_bytes)):
            where = {(around.disk.path,): num}
            text = "Filesystem where this process works."
            yield _family(GaugeMetricFamily, f"disk_{name}_bytes", text, run, where, ("path",))


def _sites(run: str, sites: tuple[SiteReading, ...]) -> Iterator[Metric]:
    gauges: dict[str, tuple[str, dict[tuple[str, ...], float | None]]] = {
        "site_up": ("1 while it takes part.", {(s.site,): not s.code for s in sites}),
        "site_tokens_per_second": ("Training now.", {(s.site,): s.tokens_per_s for s in sites}),
        "site_version": ("Version it holds.", {(s.site,): s.version for s in sites}),
        "site_silent_seconds": (
            "Ticks since its last event, as time.",
            {(s.site,): s.silent_s for s in sites if not s.code},
        ),
        "site_walltime_left_seconds": (
            "Of its job, as it last said.",
            {(s.site,): s.walltime_left_s for s in sites if not s.code},
        ),
    }
    for name, (text, values) in gauges.items():
        yield _family(GaugeMetricFamily, name, text, run, values, ("site",))
    totals: dict[str, tuple[str, dict[tuple[str, ...], float]]] = {
        "site_merged_tokens": ("Merged.", {(s.site,): s.merged_tokens for s in sites}),
        "site_delta_bytes": ("Bytes of its deltas.", {(s.site,): s.delta_bytes for s in sites}),
        "site_stall_seconds": ("Its trainer stood still.", {(s.site,): s.stall_s for s in sites}),
    }
    for name, (text, counts) in totals.items():
        yield _family(CounterMetricFamily, name, text, run, counts, ("site",))


def _counter(name: str, text: str, run: str, total: float) -> Metric:
    return _family(CounterMetricFamily, name, text, run, {(): total}, ())


def _family(
    kind: type[Any],
    name: str,
    text: str,
    run: str,
    values: Any,
    labels: tuple[str, ...],
) -> Metric:
    """One metric and its samples, labelled with the run; those without a value are left out."""
    family: Metric = kind(f"atoll_{name}", text, labels=("run", *labels))
    for key, value in values.items():
        if value is not None:
            family.add_metric((run, *key), float(value))  # type: ignore[attr-defined]
    return family


def _version() -> str:
    try:
        return metadata.version("atoll")
    except metadata.PackageNotFoundError:
        return "checkout"
