"""A hub's logic at a test's desk: it acts on a scenario's log; its trainer is the test."""

from __future__ import annotations

from typing import Any

from leases.states import is_void
from sitehub.actions import Action, Append, EndTrainer, Fetch, Leave, Tell
from sitehub.logic import HubLogic
from sitehub.state import HubState
from tests.support.history import ARITHMETIC, MANIFEST
from tests.support.scenario import Scenario, name

BLOCK_S, LEASE_S = 5.0, 16.0


class Desk:
    """A hub over a scenario's log. Appends are carried out; commands and blobs are the test's."""

    def __init__(self, run: Scenario, site: str = "a", **fields: Any) -> None:
        self.run, self.site, self.now = run, site, 100.0
        self.logic = HubLogic(HubState(site, run.view, **fields))
        self.hub = self.logic.hub
        self.told: list[dict[str, Any]] = []
        self.done: list[Action] = []

    def turn(self, seconds: float = 0.0) -> list[Action]:
        """Let time pass and the hub act until it has nothing more to do; what it did."""
        self.now += seconds
        found: list[Action] = []
        num_idle = 0
        while num_idle < 2:  # as the shell turns again by itself
            actions = self.logic.actions(self.now)
            num_idle = 0 if actions else num_idle + 1
            found += actions
            for action in actions:
                self._do(action)
            if any(isinstance(action, Leave | EndTrainer) for action in actions):
                break
        self.done += found
        return found

    def _do(self, action: Action) -> None:
        if isinstance(action, Append):
            for event in action.events:
                said = self.run.says(self.site, event, self.hub.incarnation)
                assert not is_void(said), said
            self.logic.on_appended(len(action.events), self.run.last[0], self.now)
        elif isinstance(action, Fetch):
            self.logic.on_fetched(action.blob, self.now)
        elif isinstance(action, Tell):
            self.told.append(action.command)

    def watch(self, seconds: float, **progress: Any) -> list[Action]:
        """So much time in the hub's usual turns of half a second."""
        found = []
        for _ in range(int(seconds * 2)):
            found += self.turn(0.5)
        return found

    def ready(self) -> None:
        report = {"hardware": {}, "software": {}, "manifest_digest": MANIFEST}
        self.logic.on_ready({**report, "arithmetic": ARITHMETIC})

    def answer(self, **fields: Any) -> None:
        """The trainer's answer to the last command."""
        self.logic.on_answer({"did": self.told[-1]["do"], **fields}, self.now)

    def hold(self, version: int) -> None:
        """The trainer answers that it holds a version."""
        self.answer(version=version, digest=name(f"version {version}"), seconds=0.1)

    def step(self, step: int, step_s: float = 0.1) -> None:
        report = {"step": step, "tokens": step, "tokens_per_s": 32 / BLOCK_S}
        self.logic.on_progress({**report, "step_s": step_s, "slowest_step_s": step_s})

    def trained(self, step: int) -> None:
        """The trainer ends the block it was told to train last."""
        tag = next(one["tag"] for one in reversed(self.told) if one["do"] == "train")
        report = {"step": step, "tokens_total": step, "tokens_per_s": 6.4, "loss": 2.0}
        self.logic.on_answer({"did": "train", "tag": tag, **report, "seconds": BLOCK_S}, self.now)

    def progress(self) -> list[tuple[float, float]]:
        """The run's progress at start and end of each block that the trainer was told to train."""
        trains = [command for command in self.told if command["do"] == "train"]
        return [(command["progress_from"], command["progress_to"]) for command in trains]

    def come_in(self) -> None:
        """Join, be admitted, hold the newest version."""
        self.turn()
        self.ready()
        self.turn()
        join = self.run.view.waiting_joins()[0]
        assert self.run.admit(self.site, join.token) == ""
        self.turn()
        self.hold(self.run.view.run().version)
        self.turn()

    def says(self, kind: type) -> list[Any]:
        """Events of a type that it appended."""
        appends = [action for action in self.done if isinstance(action, Append)]
        return [event for one in appends for event in one.events if isinstance(event, kind)]


def training(**fields: Any) -> Desk:
    """A hub whose trainer is in its first block of three."""
    desk = Desk(Scenario({"epochs": 9}, limits={"compile_s": 100.0}), **fields)
    desk.come_in()
    assert desk.run.open(a=3) == ""
    assert desk.run.grant("a", 0, 1, 2) == ""
    desk.turn()
    assert desk.told[-1]["do"] == "train"
    return desk
