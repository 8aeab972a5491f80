"""What the log teaches: starts are judged by what was known at their intent."""

from __future__ import annotations

import pytest

from eventlog.chain import Record
from eventlog.codec import Entry, Envelope
from eventlog.events import (
    AgentReported,
    Event,
    JobIntended,
    JobObserved,
    JobShape,
    PlacementProbed,
    QueuedJob,
    QueueObserved,
)
from ops.placement.knowledge import OUTAGE_S, STALE_S, Knowledge
from ops.placement.shapes import Basis, Shape

T0 = 1_800_000_000
SHAPE = Shape(2, 3600)
ASKED = JobShape(nodes=2, walltime_s=3600)
FULL = QueueObserved(
    partition="gpu",
    at_epoch_s=T0,
    total_nodes=4,
    free_nodes=0,
    down_nodes=0,
    up=True,
    complete=True,
    running=(QueuedJob(nodes=4, limit_s=3600, at_epoch_s=T0 + 1800),),
)


class Told:
    """A log of one agent, event by event."""

    def __init__(self) -> None:
        self.known, self.number = Knowledge(), 0

    def say(
        self, event: Event, at: float = T0, void: str = "", subject: str = "agent.lumi"
    ) -> None:
        self.number += 1
        envelope = Envelope(f"e{self.number}", event.type, 1, "r", subject, self.number, at)
        record = Record(self.number, subject, 0, b"")
        self.known.see(Entry(record, envelope, event), void)

    def starts(self, number: int, intended: int, wait_s: int) -> None:
        name = f"j-{number}"
        self.say(
            JobIntended(job_name=name, shape=ASKED, reason="r", at_epoch_s=intended), at=intended
        )
        began = intended + wait_s
        seen = JobObserved(
            job_name=name, job_id=str(number), phase="running", nodes=2, started_epoch_s=began
        )
        self.say(seen, at=began)

    def wait(self, now: float = T0) -> object:
        return self.known.estimates("lumi", [SHAPE], now)[SHAPE]


def test_without_history_the_wait_is_a_prior_around_what_the_queue_says() -> None:
    told = Told()
    told.say(FULL)
    wait = told.known.estimates("lumi", [SHAPE], T0)[SHAPE]
    assert wait.basis is Basis.PRIOR and wait.num_observed == 0
    assert wait.q(0.1) < 1800 <= wait.q(0.9)


def test_starts_that_come_as_said_narrow_the_estimate() -> None:
    told = Told()
    told.say(FULL)
    before = told.known.estimates("lumi", [SHAPE], T0)[SHAPE]
    for number in range(20):
        told.starts(number, T0, 1800)
    after = told.known.estimates("lumi", [SHAPE], T0)[SHAPE]
    assert after.num_observed == 20 and after.basis is not Basis.PRIOR
    assert after.q(0.9) - after.q(0.1) < (before.q(0.9) - before.q(0.1)) / 4
    assert after.median_s == pytest.approx(1800, abs=120)


def test_a_queue_that_is_always_late_is_learnt_to_be_late() -> None:
    told = Told()
    told.say(FULL)
    for number in range(20):
        told.starts(number, T0, 5400)
    assert told.known.estimates("lumi", [SHAPE], T0)[SHAPE].median_s == pytest.approx(5400, rel=0.1)


def test_a_start_is_judged_once_and_a_void_event_teaches_nothing() -> None:
    told = Told()
    told.say(FULL)
    told.say(JobIntended(job_name="j", shape=ASKED, reason="r", at_epoch_s=T0), void="a twin")
    running = JobObserved(
        job_name="j", job_id="1", phase="running", nodes=2, started_epoch_s=T0 + 60
    )
    told.say(running)
    told.starts(1, T0, 1800)
    told.say(running.model_copy(update={"job_name": "j-1"}))
    assert told.known.estimates("lumi", [SHAPE], T0)[SHAPE].num_observed == 1


def test_what_others_say_teaches_nothing() -> None:
    told = Told()
    told.say(FULL, subject="site.lumi")
    assert told.known.queue("lumi").seen is None


def test_a_long_outage_resets_and_a_short_one_does_not() -> None:
    for length, kept in ((OUTAGE_S - 60, 20), (OUTAGE_S + 60, 0)):
        told = Told()
        told.say(FULL)
        for number in range(20):
            told.starts(number, T0, 1800)
        told.say(AgentReported(state="troubled", message="no answer"), at=T0)
        told.say(AgentReported(state="troubled", message="still none"), at=T0 + 60)
        told.say(AgentReported(state="working"), at=T0 + length)
        assert told.known.estimates("lumi", [SHAPE], T0)[SHAPE].num_observed == kept


def test_what_is_stale_is_not_believed() -> None:
    told = Told()
    told.say(FULL)
    told.say(
        PlacementProbed(shape=ASKED, outcome="estimated", start_epoch_s=T0 + 600, asked_epoch_s=T0)
    )
    (fresh,) = told.known.queue("lumi").features([SHAPE], T0)
    assert (fresh.probe_s, fresh.simulated_s) == (600.0, 1800.0)
    (old,) = told.known.queue("lumi").features([SHAPE], T0 + STALE_S + 1)
    assert (old.probe_s, old.simulated_s) == (None, None)


def test_a_hidden_queue_is_not_simulated() -> None:
    told = Told()
    told.say(FULL.model_copy(update={"complete": False}))
    (features,) = told.known.queue("lumi").features([SHAPE], T0)
    assert features.simulated_s is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"up": False}, "down"),
        ({"total_nodes": 1}, "has 1 nodes"),
        ({"down_nodes": 3}, "down or drained"),
    ],
)
def test_a_shape_that_would_never_start_has_no_estimate(
    change: dict[str, object], why: str
) -> None:
    told = Told()
    told.say(FULL.model_copy(update=change))
    assert why in told.known.queue("lumi").never(SHAPE)
    assert told.known.estimates("lumi", [SHAPE], T0) == {}


def test_a_refused_shape_has_none_until_it_is_probed_anew() -> None:
    told = Told()
    told.say(FULL)
    told.say(PlacementProbed(shape=ASKED, outcome="refused", message="Node count invalid"))
    assert told.known.estimates("lumi", [SHAPE], T0) == {}
    told.say(PlacementProbed(shape=ASKED, outcome="estimated", start_epoch_s=T0))
    assert SHAPE in told.known.estimates("lumi", [SHAPE], T0)


def test_the_same_events_teach_the_same() -> None:
    waits = []
    for _ in range(2):
        told = Told()
        told.say(FULL)
        for number in range(12):
            told.starts(number, T0, 600 * number)
        waits.append(told.wait())
    assert waits[0] == waits[1]
