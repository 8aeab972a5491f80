"""An epoch of 1.2 million blocks: memory and time grow with blocks touched, not with blocks."""

from __future__ import annotations

import tracemalloc

import pytest

from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View
from tests.leases.test_properties import records
from tests.support.scenario import RUN, Scenario

MANY, FEW = 1_200_000, 2_000
TOUCHED = 500


def history(num_blocks: int) -> Scenario:
    """Two sites, `TOUCHED` blocks granted in the epoch's order, half of them delivered and merged,
    some given back by a departure."""
    run = Scenario({"epochs": 1}, num_sequences=4 * num_blocks)
    run.arrive("a", "b")
    index = run.view.index()
    assert index.num_blocks == num_blocks
    order = [index.at(0, position) for position in range(TOUCHED)]
    mine, others = order[: TOUCHED // 2], order[TOUCHED // 2 :]
    assert run.open(a=len(mine), b=len(others)) == ""
    assert run.grant("a", *mine) == ""
    assert run.grant("b", *others) == ""
    run.train("a", *mine)
    run.deliver("a", *mine)
    run.commit()
    assert run.depart("b") == ""
    return run


def cost(run: Scenario) -> tuple[int, int, int]:
    """(steps of SQLite's machine in hundreds, bytes at the peak, pages of the database) of folding
    the history in one batch."""
    log, steps = records(run), 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with Projection(":memory:", [LeaseTable()], RUN) as projection:
        projection.db.set_progress_handler(count, 100)
        tracemalloc.start()
        projection.replay(log)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        projection.db.set_progress_handler(None, 0)
        (pages,) = projection.db.execute("PRAGMA page_count").fetchone()
        assert View(projection.db).epochs()[0]["cursor"] == TOUCHED
        return steps, peak, pages


def test_a_large_epoch_costs_what_its_touched_blocks_cost() -> None:
    large, small = cost(history(MANY)), cost(history(FEW))
    for of_many, of_few in zip(large, small, strict=True):
        assert of_many <= 1.3 * of_few


def test_rows_exist_for_touched_blocks_only() -> None:
    run = history(MANY)
    rows = run.projection.db.execute("SELECT state, count(*) FROM blocks GROUP BY state").fetchall()
    assert dict(rows) == {"available": TOUCHED // 2, "merged": TOUCHED // 2}
    assert run.view.epochs()[0]["blocks"] == MANY


@pytest.mark.parametrize("position", [0, 1, MANY // 2, MANY - 1])
def test_the_order_of_a_large_epoch_is_asked_by_position(position: int) -> None:
    index = Scenario(num_sequences=4 * MANY).view.index()
    assert 0 <= index.at(0, position) < MANY
    assert index.at(0, position) != index.at(1, position)
