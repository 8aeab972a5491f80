"""What a run waits for and until when, in words for people (P6): a reading of the lease table.

Nothing here decides anything. It asks the policies that the coordinator decides by, so the screen
says what will happen. Time is the ticks that the fold counted; only how long a coordinator has been
silent is known to whoever looks at a clock, and is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eventlog.config import Timing
from leases import policy
from leases.divergence import diverged
from leases.forks import fork_options
from leases.owing import owes
from leases.rows import Delta, Incarnation, Join, Round, Run
from leases.states import TRAINED
from leases.supply import num_grantable
from leases.view import View
from outer import rounds
from outer.standby import owed

MAX_NAMES = 5  # in one sentence
SILENT_HEARTBEATS = 2.5  # a site that missed this many is worth a line
LATE_TICKS = 3  # a tick this much overdue is worth a line


@dataclass(frozen=True, slots=True)
class Wait:
    """`who` waits; `what` is being waited for or is the matter; `until`: when that ends, '' where
    nobody can know. `remedy`: what ends it that a person must do ("create", "coordinate", "site",
    "resume", "fork"), '' where it ends by itself; `how`: options that it takes."""

    who: str
    what: str
    until: str = ""
    remedy: str = ""
    how: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.what}" + (f", {self.until}" if self.until else "")


def waiting(view: View, silence_s: float | None = None) -> list[Wait]:
    """Everything that is being waited for, the gravest first; nothing once the run has finished.

    silence_s: for how long the coordinator has said nothing though something was owed, by the clock
    of whoever looks; None for a log that is over, where that means nothing.
    """
    run = view.run()
    if not view.exists():
        return [Wait("the run", "does not exist yet", "until it is created", "create")]
    if run.state == "finished":
        return []
    return [
        *_run_waits(view, run),
        *_coordinator_waits(view, run, silence_s),
        *_site_waits(view, run),
        *_door_waits(view),
        *_round_waits(view, run),
    ]


def span(seconds: float) -> str:
    """A duration for people: `0.4 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = int(seconds + 0.05)
    for size, big, part, small in _SPANS:
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"


_SPANS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def names(sites: Sequence[str]) -> str:
    """Some site names in a sentence: all of them, or the first ones and how many there are."""
    if len(sites) <= MAX_NAMES:
        return ", ".join(sites)
    return f"{', '.join(sites[:MAX_NAMES])}, … {len(sites)} sites in all"


def _run_waits(view: View, run: Run) -> list[Wait]:
    if run.read_only:
        return [Wait("this atoll", f"is too old for the run ({run.read_only})", "until upgraded")]
    if run.state == "paused":
        why = f"is paused: {run.reason}; started blocks are still finished and merged"
        found = diverged(view)
        if found is None:
            return [Wait("the run", why, "until it is resumed", "resume")]
        how = fork_options(view, found)
        return [Wait("the run", why, "until it is resumed, or another goes on", "fork", how)]
    if run.state == "stopping":
        live = [one.site for one in view.live()]
        left = f"; {names(live)} deliver what is started" if live else ""
        return [Wait("the run", f"is stopping: {run.reason}{left}", "until all sites have left")]
    return []


def _coordinator_waits(view: View, run: Run, silence_s: float | None) -> list[Wait]:
    if run.term == 0:
        return [Wait("the run", "has no coordinator yet", "until one is started", "coordinate")]
    timing = view.timing()
    if silence_s is None or silence_s < LATE_TICKS * timing.tick_s or not owed(view):
        return []
    said = "no tick" if run.live else "no answer"
    what = f"has no coordinator that speaks: {said} for {span(silence_s)}"
    left_s = timing.lost_ticks(run.live) * timing.tick_s - silence_s
    if left_s > 0:
        return [Wait("the run", what, f"until a standby takes over in {span(left_s)} or later")]
    until = "until the broker answers, or a coordinator is started"
    return [Wait("the run", what, until, "coordinate")]


# -- sites ----------------------------------------------------------------------------------------


def _site_waits(view: View, run: Run) -> list[Wait]:
    timing = view.timing()
    lost_ticks = timing.lost_ticks(run.live)
    return [wait for one in view.live() for wait in _site(view, run, one, timing, lost_ticks)]


def _site(view: View, run: Run, one: Incarnation, timing: Timing, lost_ticks: int) -> list[Wait]:
    silence_s = one.silent_ticks * timing.tick_s
    if one.state == "departing":
        return [Wait(one.site, f"is leaving: {one.reason}", "until its departure is recorded")]
    if one.silent_ticks >= lost_ticks:
        return [Wait(one.site, f"is silent for {span(silence_s)}", "departs now as lost")]
    surely_s = silence_s - timing.tick_s  # its last event may be as young as the first of the ticks
    if surely_s >= SILENT_HEARTBEATS * timing.heartbeat_s(run.live):
        left = span((lost_ticks - one.silent_ticks) * timing.tick_s)
        until = f"departs as lost in {left} unless it speaks"
        return [Wait(one.site, f"is silent for {span(silence_s)}", until)]
    if one.missing is not None:
        what = f"cannot have blob {one.missing[:12]}: it is not in the store, or damaged"
        return [Wait(one.site, what, "until the coordinator stores a snapshot, or it is restored")]
    owed = owes(view, one)
    if owed is not None and 2 * owed.ticks > owed.last_tick:
        stood = f"is {owed.what}, for {span(owed.ticks * timing.tick_s)}"
        left = span(max(0, owed.last_tick - owed.ticks) * timing.tick_s)
        return [Wait(one.site, stood, f"departs as lost in {left} unless it goes on")]
    if one.drain:
        return [Wait(one.site, "is drained: it delivers what is started", "until it has left")]
    if not policy.usable(view, one):
        held = "no version yet" if one.version is None else f"version {one.version}"
        what = f"holds {held} and gets no blocks"
        return [Wait(one.site, what, f"until it holds version {run.version}")]
    return []


def _door_waits(view: View) -> list[Wait]:
    return [_door(view, join) for join in view.waiting_joins()]


def _door(view: View, join: Join) -> Wait:
    live = view.live_at(join.site)
    what = "waits at the door: "
    if live is not None and join.predecessor == live.token:
        what += f"it holds the lock of its predecessor #{live.token[0]}"
        return Wait(join.site, what, "until that one is departed")
    if live is None or policy.answer(view, join):
        return Wait(join.site, what + "no coordinator has answered", "until one does")
    timing, run = view.timing(), view.run()
    left_ticks = max(0, timing.lost_ticks(run.live) - live.silent_ticks)
    left = span(left_ticks * timing.tick_s)
    if live.last_seq > (join.incarnation_seen or 0):
        what += f"its predecessor #{live.token[0]} still speaks"
        return Wait(join.site, what, "until that one departs")
    what += f"its predecessor #{live.token[0]} is silent"
    return Wait(
        join.site, what, f"until that one departs in {left}; refused as a twin if it speaks"
    )


# -- rounds ---------------------------------------------------------------------------------------


def _round_waits(view: View, run: Run) -> list[Wait]:
    round_, deltas = view.round(), view.deltas("undecided")
    if round_ is not None and round_.state == "closed":
        return [_merging(view, round_)]
    if view.target_reached() and round_ is None:
        what = f"has reached its target: version {run.version} is being kept whole"
        return [Wait("the run", what, "until that is stored; then it finishes")]
    if round_ is None:
        return _between(view, run)
    if not run.live and not deltas:
        what = f"rests in round {round_.round}: nobody is live"
        return [Wait("the run", what, _COMES, "site" if run.state == "running" else "")]
    missing = rounds.expected(view, round_)
    if not missing:
        return [_no_more_expected(run, round_, deltas)]
    return [_deltas_missing(view, run, round_, deltas, missing), *_delivered(view, run, missing)]


_COMES = "until a site joins"


def _merging(view: View, round_: Round) -> Wait:
    sites = sorted({delta.site for delta in view.deltas("cut")})
    what = f"is being merged from the deltas of {names(sites)}"
    return Wait(f"version {view.run().version + 1}", what, f"until round {round_.round} commits")


def _between(view: View, run: Run) -> list[Wait]:
    if run.state != "running":
        return []
    if not run.live and not view.deltas("undecided"):
        return [Wait("the run", "rests: nobody is live", _COMES, "site")]
    if rounds.opening(view):
        return [
            Wait(f"round {run.round + 1}", "is about to open", "until the coordinator opens it")
        ]
    what = f"waits for a site that holds version {run.version}"
    return [Wait(f"round {run.round + 1}", what, "until one reports it")]


def _no_more_expected(run: Run, round_: Round, deltas: list[Delta]) -> Wait:
    who = f"round {round_.round}"
    if deltas:
        what = f"has all {len(deltas)} expected deltas: they are checked"
        if len(deltas) == 1:
            what = "has the one expected delta: it is checked"
        return Wait(who, what, "until the cut is made")
    if run.state != "running":
        return Wait(who, "has no delta and stays open", "until the run goes on or ends")
    return Wait(who, "has no delta yet: nobody in it holds blocks", "until a site is given some")


def _deltas_missing(
    view: View, run: Run, round_: Round, deltas: list[Delta], missing: list[Incarnation]
) -> Wait:
    who = f"round {round_.round}"
    quotas = view.quotas(round_.round)
    more = num_grantable(view, 1) > 0
    owing = [_share(view, one, quotas[one.token[0]], more) for one in missing[:MAX_NAMES]]
    if len(missing) > MAX_NAMES:
        owing.append(f"… {len(missing)} sites in all")
    return Wait(who, f"waits for {', '.join(owing)}", _closes(view, run, round_, deltas))


def _share(view: View, one: Incarnation, quota: int, more: bool) -> str:
    """How far a site is: trained blocks of its quota, or of what it holds where no more come."""
    held = view.held(one.token[0])
    done, of = sum(block.state == TRAINED for block in held), quota if more else len(held)
    if done >= of and one.version is not None and one.version < view.run().version:
        return f"{one.site} (its quota is trained, version {view.run().version} is on its way)"
    return f"{one.site} ({min(done, of)} of {of} blocks)"


def _closes(view: View, run: Run, round_: Round, deltas: list[Delta]) -> str:
    """When the round closes though deltas are missing: after grace, or at the deadline (R13)."""
    timing = view.timing()
    left_ticks = round_.opened_ticks + round_.deadline_ticks - run.ticks
    if left_ticks <= 0 and not deltas:
        return "until the first delta: the deadline is over"
    quorum = rounds.quorum_ticks(view, round_)
    if quorum is not None:
        grace_ticks = quorum + round_.grace_ticks - run.ticks
        if grace_ticks < left_ticks:
            num = max(1, min(round_.quorum, run.live))
            left = span(max(0, grace_ticks) * timing.tick_s)
            return f"until all are in; quorum of {num} reached, grace ends in {left}"
    left = span(max(0, left_ticks) * timing.tick_s)
    return f"until all are in, or for {left} more (deadline)"


def _delivered(view: View, run: Run, missing: list[Incarnation]) -> list[Wait]:
    """Sites that have done their part of the open round, and have nothing to train meanwhile."""
    owing = {one.token for one in missing}
    done = [
        one.site
        for one in view.live()
        if one.token not in owing
        and view.has_undecided(one.token[0])
        and not view.held(one.token[0])
    ]
    if not done:
        return []
    verb = "waits" if len(done) == 1 else "wait"
    return [Wait(names(done), f"delivered and {verb} for version {run.version + 1}")]
