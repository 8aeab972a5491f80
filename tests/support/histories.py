"""Random histories: what sites, coordinators and others could ever write, right and wrong.

A step is (kind, x, y); x and y choose among what there is, so that any list of steps is a history,
and a shorter list is a simpler one.
"""

from __future__ import annotations

from hypothesis import strategies as st

from eventlog.codec import encode, pack, unpack
from eventlog.events import (
    COORDINATOR,
    BlockCompleted,
    BlockQuarantined,
    BlockStarted,
    CoordinatorTick,
    EvaluationCompleted,
    Event,
    Heartbeat,
    LeaseReclaimed,
    LeaseStolen,
    RunPaused,
    RunResumed,
    RunStopped,
    SiteDeparting,
    Token,
)
from outer.facts import Facts, Verdict
from outer.rounds import decide
from tests.support.scenario import Scenario, finish, name

SITES = ("a", "b", "c")
DIGESTS = (name("p"), name("m"), name("r"))
HONEST = (
    "advance",
    "advance",
    "advance",
    "advance",
    "advance",
    "advance",
    "policy", "policy", "policy", "tick", "join", "apply", "start", "complete", "deliver", "work",
    "work", "work", "cut", "commit", "refuse", "steal", "reclaim", "depart", "elect", "zombie",
    "leave", "say", "repeat", "pause", "resume",
)  # fmt: skip
ANY = (*HONEST, "grant", "quarantine", "admit", "open", "badcut", "badcommit", "stop", "finish")
ANY = (*ANY, "garbage", "stale", "skip", "newer", "mangled")


def histories(kinds: tuple[str, ...], max_size: int = 60) -> st.SearchStrategy[list]:
    """Lists of steps of these kinds."""
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 30), st.integers(0, 30))
    return st.lists(step, min_size=5, max_size=max_size)


class Player:
    """Plays steps on a scenario, and remembers incarnations that are no more."""

    def __init__(self, run: Scenario) -> None:
        self.run = run
        self.old: list[tuple[str, Token]] = []

    def play(self, steps: list[tuple[str, int, int]]) -> None:
        for kind, x, y in steps:
            getattr(self, kind)(SITES[x % 3], x, y)

    # -- decisions --------------------------------------------------------------------------------

    def policy(self, site: str, x: int, y: int) -> None:
        """What the coordinator decides, where every delta's blob is found good."""
        view = self.run.view
        verdicts = {one.token[0]: Verdict() for one in view.deltas("undecided", "cut")}
        for _ in range(y % 4 + 1):
            events = decide(view, Facts(verdicts, digests=DIGESTS))
            if not events:
                return
            self._decide(*events)

    def tick(self, site: str, x: int, y: int) -> None:
        for _ in range(y % 5 + 1):
            self._decide(CoordinatorTick(tick=self.run.view.run().term_ticks + 1))

    def elect(self, site: str, x: int, y: int) -> None:
        if self.run.view.run().state != "finished":
            self.run.elect(f"holder {y}")

    def cut(self, site: str, x: int, y: int) -> None:
        if self.run.view.deltas("undecided") and self.run.view.round() is not None:
            self._decide(self.run.closing())

    def commit(self, site: str, x: int, y: int) -> None:
        if self.run.view.round() is not None:
            self._decide(self.run.committing())

    def refuse(self, site: str, x: int, y: int) -> None:
        deltas = self.run.view.deltas("undecided", "cut", "void")
        if deltas:
            one = deltas[y % len(deltas)]
            self.run.refuse(one.token, one.site, ("nonfinite", "stale", "void")[x % 3])

    def steal(self, site: str, x: int, y: int) -> None:
        if site in self.run.sites:
            fields = {"incarnation": self.run.sites[site], "site": site, "epoch": x % 2}
            fields |= {"blocks": (y % 7, x % 7), "reason": "slow"}
            self._decide(LeaseStolen.model_validate(fields))

    def reclaim(self, site: str, x: int, y: int) -> None:
        held = self._held(site)
        if held:
            some = held if y % 2 else held[: x % len(held) + 1]
            fields = {"incarnation": self.run.sites[site], "site": site, "reason": "slow"}
            fields["blocks"] = [(one.epoch, one.block) for one in some]
            self._decide(LeaseReclaimed.model_validate(fields))

    def depart(self, site: str, x: int, y: int) -> None:
        if site in self.run.sites and y % 2:
            self.old.append((site, self.run.sites[site]))
            self.run.depart(site)

    def admit(self, site: str, x: int, y: int) -> None:
        self.run.admit(site, (y, "a guess"))

    def open(self, site: str, x: int, y: int) -> None:
        self.run.open(**{one: y % 3 + 1 for one in self.run.sites})

    def grant(self, site: str, x: int, y: int) -> None:
        if site in self.run.sites:
            self.run.grant(site, y % 7, x % 7, x % 7, epoch=y % 3)

    def quarantine(self, site: str, x: int, y: int) -> None:
        self._decide(BlockQuarantined(epoch=x % 3, block=y % 8, reason="bad"))

    def badcut(self, site: str, x: int, y: int) -> None:
        if self.run.view.deltas("undecided"):
            cut = self.run.closing()
            parts = [part.model_copy(update={"weight": 1 / (y + 1)}) for part in cut.deltas]
            self._decide(cut.model_copy(update={"deltas": (*parts, *parts[: x % 2])}))

    def badcommit(self, site: str, x: int, y: int) -> None:
        if self.run.view.round() is not None:
            self._decide(self.run.committing(cut=(x, "guess"), version=y + 1))

    def finish(self, site: str, x: int, y: int) -> None:
        if y > 20:  # else most histories would be short
            self.policy(site, x, y)
            self.run.operator(RunStopped(reason="enough"))

    def stale(self, site: str, x: int, y: int) -> None:
        if self.run.view.deltas("undecided") and self.run.view.round():
            self.run.decide(self.run.closing(), term=x + 1)

    def advance(self, site: str, x: int, y: int) -> None:
        """Most of a round, as it goes where nothing goes wrong."""
        self.policy(site, x, 3)
        for one in SITES[: x % 3 + 1]:
            for _ in range(3):
                self.work(one, 1, 1)
        self.policy(site, x, y)

    # -- sites ------------------------------------------------------------------------------------

    def join(self, site: str, x: int, y: int) -> None:
        if self.run.view.run().state == "finished":
            return
        if site in self.run.sites:
            self.old.append((site, self.run.sites[site]))
        join = self.run.join(site, predecessor=self.run.sites.get(site) if y % 2 else None)
        if y % 3 and not self.run.admit(site, join):
            self.run.apply(site, self.run.view.run().version)

    def apply(self, site: str, x: int, y: int) -> None:
        self.run.apply(
            site, max(0, self.run.view.run().version - y % 2), "" if x % 5 else DIGESTS[0]
        )

    def start(self, site: str, x: int, y: int) -> None:
        self._say(site, self.run.starting(y % 7, x % 2))

    def complete(self, site: str, x: int, y: int) -> None:
        self._say(site, self.run.completing(y % 7, x % 2))

    def deliver(self, site: str, x: int, y: int) -> None:
        blocks = sorted({y % 6, x % 6})
        self._say(site, self.run.delivery(*blocks, epoch=y % 2, last=bool(x % 4 == 0)))

    def work(self, site: str, x: int, y: int) -> None:
        """Everything the site holds goes one or two moves further, or out in a delta."""
        held = self._held(site)
        trained = [one for one in held if one.state == "trained"]
        for one in held:
            if one.state == "leased":
                self._say(site, self.run.starting(one.block, one.epoch))
            if one.state == "training" or y % 2:
                self._say(site, self.run.completing(one.block, one.epoch))
        if trained and y % 3:
            delta = self.run.delivery(0)
            parts = [self.run.delivery(one.block, epoch=one.epoch).blocks[0] for one in trained]
            self._say(site, delta.model_copy(update={"blocks": tuple(parts), "last": x % 5 == 0}))

    def zombie(self, site: str, x: int, y: int) -> None:
        if self.old:
            who, token = self.old[y % len(self.old)]
            events: tuple[Event, ...] = (
                self.run.starting(x % 6), self.run.completing(x % 6), self.run.delivery(x % 6),
            )  # fmt: skip
            self.run.says(who, events[y % 3], token)

    def leave(self, site: str, x: int, y: int) -> None:
        if y % 4 == 0:
            self._say(site, SiteDeparting(code="walltime", reason="its job ends"))

    def say(self, site: str, x: int, y: int) -> None:
        self._say(site, Heartbeat(phase="training", step=y, tokens=x, tokens_per_s=float(x)))
        nan = float("nan")
        self._say(site, EvaluationCompleted(
            version=y, num_tokens=1, loss=nan, perplexity=nan, bits_per_byte=nan
        ))  # fmt: skip

    # -- others, and nobody -----------------------------------------------------------------------

    def pause(self, site: str, x: int, y: int) -> None:
        if y % 6 == 0:
            self.run.operator(RunPaused(reason="a break"))

    def resume(self, site: str, x: int, y: int) -> None:
        self.run.operator(RunResumed(reason="on"))

    def stop(self, site: str, x: int, y: int) -> None:
        if y == 30:
            self.run.operator(RunStopped(reason="enough"))

    def repeat(self, site: str, x: int, y: int) -> None:
        """An old event once more, where it stood or on another subject."""
        records = finish(self.run.log.read(0))
        record = records[(x * 31 + y) % len(records)]
        subject = record.subject if x % 4 else f"site.{site}"
        self.run.raw(subject, record.payload)

    def garbage(self, site: str, x: int, y: int) -> None:
        subject = (COORDINATOR, "operator", "planner", f"site.{site}")[y % 4]
        self.run.raw(subject, bytes([x, y]) * (x % 5 + 1))

    def skip(self, site: str, x: int, y: int) -> None:
        event = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
        self.run.forged(f"site.{site}", event, n=y)

    def newer(self, site: str, x: int, y: int) -> None:
        if y == 30:
            self.run.forged(COORDINATOR, CoordinatorTick(tick=1), type="lease.extended")
        else:
            event = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
            self.run.forged(f"site.{site}", event, version=y + 2)

    def mangled(self, site: str, x: int, y: int) -> None:
        """A well-numbered event one number of which is absurd."""
        events: tuple[Event, ...] = (
            BlockStarted(epoch=0, block=0, lease=(1, "x")),
            BlockCompleted(epoch=0, block=0, lease=(1, "x"), loss=1.0, seconds=5e-324),
            self.run.delivery(0),
        )
        subject = f"site.{site}"
        wire = unpack(encode(events[x % 3], self.run.envelope(subject, events[x % 3])))
        number = (2**64 - 1, 2**62, 2**63, -(2**63), -1)[y % 5]
        for key in ("epoch", "block", "base_version", "num_bytes"):
            if key in wire["data"] and (x + y) % 2:
                wire["data"][key] = number
        if "lease" in wire["data"]:
            wire["data"]["lease"] = [number, "x"]
        self.run.raw(subject, pack(wire))

    def _decide(self, *events: Event) -> None:
        self.run.decide(*events)
        for site in SITES:
            one = self.run.view.live_at(site)
            if one is not None and self.run.sites.get(site) != one.token:
                self.run.sites[site] = one.token
                self.run.apply(site, self.run.view.run().version)

    def _say(self, site: str, event: Event) -> None:
        self.run.says(site, event)

    def _held(self, site: str) -> list:
        return self.run.view.held(self.run.sites[site][0]) if site in self.run.sites else []
