"""What a fork takes over, and what its parent's log says of that."""

from __future__ import annotations

import pytest

from eventlog.codec import Entry, decode
from eventlog.config import RunConfig
from eventlog.events import OPERATOR, Lineage
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.forks import child_settings, lineage, unlike
from leases.progress import share_done, share_of_target
from leases.table import LeaseTable
from leases.view import View
from tests.leases.stories import records
from tests.leases.test_evaluators import committed
from tests.support.scenario import RUN, Scenario, config, created, finish, name


def parent(target: dict[str, int]) -> Scenario:
    """Three versions of 32 tokens each."""
    run = Scenario(target, inner={"steps": 2, "batch_sequences": 2})
    run.arrive("a")
    committed(run, 3)
    return run


def event_at(run: Scenario, sequence: int) -> tuple[Entry, str]:
    return decode(records(run)[sequence - 1]), run.why[sequence]


def made(run: Scenario, version: int) -> Lineage:
    row = run.view.version(version)
    sequence = row.seq if row else 1
    entry, _ = event_at(run, sequence)
    assert entry.envelope is not None
    digest = name(f"version {version}")
    return Lineage(
        run="tests", version=version, parameters_digest=digest, made=(sequence, entry.envelope.id)
    )


@pytest.mark.parametrize(
    ("target", "left", "share"),
    [
        ({"tokens": 320}, {"tokens": 256}, 0.2),
        ({"rounds": 10}, {"rounds": 8}, 0.2),
        ({"epochs": 2}, {"tokens": 2 * 176 - 64}, 64 / 352),
    ],
)
def test_target_and_schedules_go_on_where_the_parent_stood(
    target: dict[str, int], left: dict[str, int], share: float
) -> None:
    run = parent(target)
    settings = child_settings(run.view, "tests", 2)
    assert settings["target"] == left
    assert settings["start"] == {"share": pytest.approx(share)}
    tree = {**run.view.config().model_dump(mode="json", exclude_none=True), **settings}
    child, index = RunConfig.model_validate(tree), run.view.index()
    assert share_done(child, index, 0, 0, 0) == pytest.approx(share)
    assert share_done(child, index, left.get("rounds", 0), left.get("tokens", 0), 0) == 1.0
    assert share_of_target(child, index, 0, 0) == 0.0, "its own target is all before it"
    before = share_done(run.view.config(), index, 3, 96, 0)
    assert share_done(child, index, 1, 32, 0) == pytest.approx(before), "one version later, both"


def test_two_forks_of_a_version_meet_the_same_blocks_and_others_do_not() -> None:
    run = parent({"epochs": 2})
    seeds = [child_settings(run.view, "tests", version)["seed"] for version in (2, 2, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert run.view.config().seed not in seeds


def test_a_parent_without_anything_left_asks_for_a_target() -> None:
    run = parent({"rounds": 3})
    with pytest.raises(ValueError, match="give one, such as --set target"):
        child_settings(run.view, "tests", 3)
    assert "target" not in child_settings(run.view, "tests", 3, target=False)


def test_a_lineage_is_borne_out_by_the_parents_log() -> None:
    run = parent({"epochs": 2})
    for version in (0, 1, 3):
        found = made(run, version)
        assert found.made is not None
        assert unlike(found, *event_at(run, found.made[0])) == ""


def test_a_lineage_that_the_parents_log_does_not_bear_out_is_told() -> None:
    run = parent({"epochs": 2})
    good = made(run, 2)
    assert good.made is not None
    here, void = event_at(run, good.made[0])
    cases = [
        (good.model_copy(update={"made": None}), here, "does not say which event"),
        (good.model_copy(update={"made": (good.made[0], "another")}), here, "another history"),
        (good.model_copy(update={"version": 1}), here, "made version 2, not 1"),
        (good.model_copy(update={"parameters_digest": "00" * 32}), here, "has parameters"),
        (good, None, "has no event"),
    ]
    for one, entry, said in cases:
        assert said in unlike(one, entry, void)
    assert "is void" in unlike(good, here, "it is a duplicate")


@pytest.mark.parametrize(("digest", "exists"), [("22" * 32, True), ("33" * 32, False)])
def test_a_run_exists_only_with_the_parameters_that_its_lineage_names(
    digest: str, exists: bool
) -> None:
    come = Lineage(run="parent", version=2, parameters_digest="22" * 32)
    event = created(config(), lineage=come.model_dump(), parameters_digest=digest)
    log = MemoryLog(RUN, lambda: 0)
    finish(Writer(log, OPERATOR, clock=lambda: 0.0).append([event], Stamp()))
    with Projection(":memory:", [LeaseTable()], RUN) as projection:
        ((_, (void,)),) = projection.apply(finish(log.read(0)))
        view = View(projection.db)
        assert view.exists() is exists and ("other parameters" in void) is not exists
        assert not exists or lineage(view) == come
