"""What became of forecasts: from the log of a run, or from a recorded file; each judged in its
time.

Of a log, the forecast of a job is the one that was made from what the log held when the job was
intended (`knowledge`), and its wait the one that its agent reported. A recorded file is one of the
published traces (by its name), or JSON lines `{"at_s", "wait_s", "said_s"?, "by"?, "cluster"?}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eventlog.codec import Entry
from eventlog.events import AGENT, JobObserved
from ops.placement import coverage, traces
from ops.placement.coverage import Judged, Observation
from ops.placement.estimate import Estimator, Features
from ops.placement.knowledge import Knowledge
from ops.placement.traces import TraceInvalid

SAYS = ("probe", "simulated", "start")
KTH_EVERY = 4  # of KTH's jobs: a simulation of the queue for each would take a minute


def of_file(path: Path) -> list[Judged]:
    """Forecasts for a recorded file, each from what came before. Raises TraceInvalid."""
    if path.name == traces.PAIRS:
        observations = coverage.of_pairs(traces.pairs(path))
    elif path.name == traces.DRAC:
        observations = coverage.of_drac(traces.drac(path))
    elif path.name == traces.KTH:
        observations = coverage.of_kth(traces.kth(path), KTH_EVERY)
    else:
        observations = sorted(_recorded(path), key=lambda one: one.at_s)
    return list(coverage.judged(observations, Estimator()))


@dataclass(frozen=True, slots=True)
class Start:
    """A job of a run that an agent saw start, and the forecast that it was submitted on."""

    site: str
    job: str
    judged: Judged


class Starts:
    """The jobs of a run that have started, in the order of their starts: fed with its events.

    Jobs of one site that were intended within half an hour are a cluster."""

    def __init__(self) -> None:
        self.found: list[Start] = []
        self._knowledge = Knowledge()

    def see(self, entry: Entry, void: str) -> None:
        """Take in one event and why it is void ('': it is not)."""
        kind, _, site = entry.record.subject.partition(".")
        event = entry.event
        if kind == AGENT and not void and isinstance(event, JobObserved):
            waiting = self._knowledge.queue(site).waiting.get(event.job_name)
            began_s = event.started_epoch_s
            if waiting is not None and event.phase == "running" and began_s is not None:
                forecast, since_s = waiting
                cluster = (site, int(since_s // coverage.CLUSTER_GAP_S))
                wait_s = max(0.0, began_s - since_s)
                one = Judged(Observation(since_s, Features(), wait_s, cluster), forecast)
                self.found.append(Start(site, event.job_name, one))
        self._knowledge.see(entry, void)


def _recorded(path: Path) -> Iterator[Observation]:
    for number, line in enumerate(traces.lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at_s, wait_s = float(row["at_s"]), float(row["wait_s"])
            said, by = row.get("said_s"), row.get("by", "probe")
            if by not in SAYS:
                raise ValueError(by)
            features = Features() if said is None else Features(**{f"{by}_s": float(said)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceInvalid(
                f'{path}:{number}: no {{"at_s", "wait_s"}} with a "said_s" by one of {SAYS}'
            ) from error
        cluster = row.get("cluster", int(at_s // coverage.CLUSTER_GAP_S))
        yield Observation(at_s, features, wait_s, str(cluster))
