"""What a hub knows besides its fold of the log: lost at its death, and with it the incarnation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eventlog.events import Event, SiteDeparting, Token
from leases.rows import Block
from leases.view import View
from sitehub.saved import Resume, Saving
from sitehub.transfers import Transfers

Key = tuple[int, int, int]  # (epoch, block, lease sequence)


def key_of(block: Block) -> Key:
    """A block as this incarnation was granted it."""
    return (block.epoch, block.block, block.lease[0])


@dataclass(slots=True)
class Publication:
    """A delta on its way: cut from the trainer, stored, announced, judged."""

    blocks: list[Block]
    base_version: int
    name: str  # of its file in the work folder
    label: str  # see `sitehub.settling`
    last: bool  # the site departs after it
    codec: str = ""  # '' until the trainer has written it
    norm: float = 0.0
    max_abs: float = 0.0
    blob: str | None = None
    num_bytes: int = 0
    announced: bool = False


@dataclass(slots=True)
class TrainerState:
    """What the hub knows of its trainer. `num_deaths` in a row, without a block between them."""

    ready: dict[str, Any] | None = None
    starting: bool = False
    busy: str = ""  # the command that keeps it from training, or "train"
    beside: str = ""  # what it does beside that: "publish" once it is cut, or "apply"
    version: int | None = None  # that it holds
    step: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    block_s: float = 0.0  # how long a block takes, an exponential average
    step_s: float = 0.0  # the slowest of its recent steps
    num_deaths: int = 0
    num_told: int = 0  # commands
    num_beside: int = 0  # of those, what is done beside training
    ending: bool = False  # it hangs and is being killed
    cold: bool = False  # it could not be warmed up; admitted, it tries again
    digest: str = ""  # of the version that it holds
    source: str = "update"  # where that came from
    resumed: bool = False  # it was told what to take up from its site's last life
    saving: bool = False  # a checkpoint is on its way to the disk
    saving_since: float = 0.0


@dataclass(slots=True)
class Eye:
    """What the hub last saw of its trainer (R10). `mark`: commands told and steps done."""

    mark: tuple[int, int] = (0, 0)
    since: float = 0.0
    looked: float = 0.0


@dataclass(slots=True)
class Leaving:
    """Why this site leaves, and what its process then ends with."""

    code: str
    reason: str
    exit_code: int


@dataclass(slots=True)
class HubState:
    """`walltime_end`: when the job ends, on the clock of `now`; None: never. `predecessor`: the
    incarnation that held this site's lock on this machine before; `successor`: this is the job
    that follows the one that lives, and waits for its departure (R11)."""

    site: str
    view: View
    walltime_end: float | None = None
    predecessor: Token | None = None
    successor: bool = False
    trainer: TrainerState = field(default_factory=TrainerState)
    eye: Eye = field(default_factory=Eye)
    eye_beside: Eye = field(default_factory=Eye)
    incarnation: Token | None = None
    leaving: Leaving | None = None
    join_seq: int | None = None  # of our SiteJoined
    joining: bool = False  # it is on its way
    queue: list[Event] = field(default_factory=list)  # to be appended, in order
    appending: bool = False  # the head of the queue is on its way
    last_append: float = 0.0
    publication: Publication | None = None
    num_published: int = 0
    rebase: bool | None = None  # a refusal to answer; True: with the inner state reset
    discard: bool = False  # a reclaim of started blocks to answer
    claimed: set[Key] = field(default_factory=set)  # BlockStarted was queued
    done: set[Key] = field(default_factory=set)  # trained; BlockCompleted was queued
    departing: bool = False  # SiteDeparting was queued
    announced_version: int | None = None  # newest one in a VersionApplied
    files: set[str] = field(default_factory=set)  # blobs in the work folder
    unneeded: list[str] = field(default_factory=list)  # files of it that can go
    fetching: dict[str, float] = field(default_factory=dict)  # blob: since when
    # blobs that cannot be had: when to ask again, and after what pause
    lacking: dict[str, tuple[float, float]] = field(default_factory=dict)
    storing: bool = False
    transfers: Transfers = field(default_factory=Transfers)
    unsettled: list[str] = field(default_factory=list)  # labels of deltas that lost something
    settling: set[str] = field(default_factory=set)  # those that the trainer is told of now
    phases: dict[str, float] = field(default_factory=dict)  # seconds, for the next VersionApplied
    stall_s: float = 0.0  # likewise
    evaluated: int = 0  # the newest version that was, or need not be, evaluated here
    evaluate_s: float = 0.0  # that the last evaluation took
    saving: Saving | None = None  # checkpoints; None: the site makes none
    resume: Resume | None = None  # what a trainer that has just begun takes up
    delivered_at: float | None = None  # when a delta was announced that is not decided yet

    def held(self) -> list[Block]:
        """Undelivered blocks that the fold says are ours."""
        return self.view.held(self.incarnation[0]) if self.incarnation else []

    @property
    def overlaps(self) -> bool:
        """Whether training goes on beside the exchange."""
        return self.view.config().outer.overlap != "none"

    def spent(self, phase: str, seconds: float) -> None:
        """Add to a phase of the exchange."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def forget_work(self) -> None:
        """Our blocks were taken back: nothing trained or cut from the trainer counts."""
        self.claimed, self.done = set(), set()
        if self.publication is not None and not self.publication.announced:
            self.publication = None

    def depart(self, code: str, reason: str) -> None:
        """Say good-bye, once."""
        if self.incarnation is None or self.departing:
            return
        self.departing = True
        self.queue.append(SiteDeparting.model_validate({"code": code, "reason": reason[:500]}))

    def start_over(self) -> None:
        """After a departure that was not our wish: join again, from the current version."""
        self.predecessor, self.incarnation, self.join_seq = None, None, None
        self.queue, self.departing, self.announced_version = [], False, None
        self.forget_work()
        self.publication = None
        self.rebase, self.discard, self.trainer.version = None, False, None
        self.phases, self.stall_s, self.delivered_at = {}, 0.0, None
