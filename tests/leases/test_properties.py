"""What holds in every history: no raise, true counts, one merge a block, one table a log."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import COORDINATOR, OPERATOR, RoundCommitted
from eventlog.projector import Projection
from leases.books import Books, num_outstanding
from leases.schema import table_digest
from leases.table import LeaseTable
from tests.support.histories import ANY, HONEST, SITES, Player, histories
from tests.support.scenario import RUN, Scenario, finish

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SMALL = settings(SETTINGS, max_examples=30)


def played(steps: list) -> Scenario:
    run = Scenario({"epochs": 2}, num_sequences=22)
    run.arrive("a", "b")
    Player(run).play(steps)
    return run


def records(run: Scenario) -> list[Record]:
    return finish(run.log.read(0, limit=10**6))


def folded(log: list[Record], sizes: list[int], path: Path | str = ":memory:") -> str:
    """The table's digest after folding in batches of these sizes, over and over."""
    with Projection(path, [LeaseTable()], RUN) as projection:
        position = turn = 0
        while position < len(log):
            size = sizes[turn % len(sizes)]
            projection.apply(log[position : position + size])
            position, turn = position + size, turn + 1
        return table_digest(projection.db)


def check_counts(run: Scenario) -> None:
    """Every counter is what a recount of the rows gives."""
    db, index = run.projection.db, run.view.index()
    states = ("leased", "training", "trained", "delivered")
    for row in run.view.epochs():
        held = db.execute("SELECT block, state FROM blocks WHERE epoch = ?", (row["epoch"],))
        blocks = dict(held.fetchall())
        of = {state: [b for b, s in blocks.items() if s == state] for state in set(blocks.values())}
        assert row["merged"] == len(of.get("merged", []))
        assert row["merged_tokens"] == sum(map(index.tokens, of.get("merged", [])))
        assert row["quarantined"] == len(of.get("quarantined", []))
        assert row["freed"] == len(of.get("available", []))
        assert row["outstanding"] == sum(len(of.get(state, [])) for state in states)
        returned = row["reclaimed"] + row["stolen"] + row["refused"]
        assert row["granted"] == row["merged"] + row["outstanding"] + returned
        order = [index.at(row["epoch"], position) for position in range(index.num_blocks)]
        untouched = [position for position, block in enumerate(order) if block not in blocks]
        assert row["cursor"] == (untouched[0] if untouched else index.num_blocks)
    state = run.view.run()
    rows = db.execute("SELECT block, state FROM blocks").fetchall()
    on_the_way = [block for block, now in rows if now in states]
    merged = [block for block, now in rows if now == "merged"]
    assert state.outstanding_blocks == len(on_the_way) == num_outstanding(Books(db))
    assert state.outstanding_tokens == sum(map(index.tokens, on_the_way))
    assert (state.merged_blocks, state.merged_tokens) == (
        len(merged),
        sum(map(index.tokens, merged)),
    )
    assert state.live == len(run.view.live())


def check_merged_once(run: Scenario) -> None:
    """P1, by an independent replay: the blocks of committed deltas, named by what they said."""
    entries = {record.sequence: decode(record) for record in records(run)}
    valid = [entry for sequence, entry in entries.items() if not run.why[sequence]]
    cuts = {entry.token: entry.event for entry in valid if entry.event.type == "round.closed"}
    seen: list[tuple[int, int]] = []
    for entry in valid:
        if isinstance(entry.event, RoundCommitted):
            for cut in cuts[entry.event.cut].deltas:
                delta = entries[cut.delta[0]].event
                seen += [(block.epoch, block.block) for block in delta.blocks]
    assert len(seen) == len(set(seen))
    found = run.projection.db.execute("SELECT epoch, block FROM blocks WHERE state = 'merged'")
    assert sorted(seen) == sorted(found.fetchall())


@SETTINGS
@given(histories(ANY))
def test_no_history_makes_the_fold_raise_and_its_counts_are_recounts(steps: list) -> None:
    run = played(steps)
    check_counts(run)
    check_merged_once(run)


@SETTINGS
@given(histories(HONEST))
def test_p1_a_block_is_merged_at_most_once(steps: list) -> None:
    run = played(steps)
    check_merged_once(run)
    check_counts(run)


@SMALL
@given(histories(ANY), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_p3_how_the_log_is_cut_into_batches_changes_nothing(steps: list, sizes: list[int]) -> None:
    run = played(steps)
    log = records(run)
    digest = table_digest(run.projection.db)
    assert folded(log, [1]) == folded(log, [len(log)]) == folded(log, sizes) == digest


def test_p3_a_projection_that_is_killed_in_between_goes_on_to_the_same_table(
    tmp_path: Path,
) -> None:
    chance = random.Random(5)
    kinds = [(chance.choice(ANY), chance.randrange(31), chance.randrange(31)) for _ in range(150)]
    run = played(kinds)
    log, path = records(run), tmp_path / "killed.sqlite"
    position = 0
    while position < len(log):
        projection = Projection(path, [LeaseTable(), _Bomb(chance.randrange(1, 12))], RUN)
        position = projection.position.sequence
        try:
            while position < len(log):
                projection.apply(log[position : position + 4])
                position = projection.position.sequence
        except _Killed:
            pass
        projection.close()
    with Projection(path, [LeaseTable(), _Bomb(0)], RUN) as projection:
        assert table_digest(projection.db) == table_digest(run.projection.db)


class _Killed(Exception):
    """Stands for the end of the process within a transaction."""


class _Bomb:
    """A second fold in whose middle the process ends."""

    name, schema_version = "bomb", 1

    def __init__(self, fuse: int) -> None:
        self.fuse = fuse

    def create(self, db: object) -> None: ...

    def begin(self, db: object) -> None: ...

    def finish(self, db: object) -> None: ...

    def apply(self, db: object, entry: object) -> str:
        self.fuse -= 1
        if self.fuse == 0:
            raise _Killed
        return ""


OWN = {
    "blocks": "SELECT epoch, block, state, lease, incarnation, delta FROM blocks WHERE incarnation "
    "IN (SELECT seq FROM incarnations WHERE site = ?1) OR delta IN "
    "(SELECT seq FROM deltas WHERE site = ?1) ORDER BY epoch, block",
    "deltas": "SELECT seq, id, incarnation, state, base_version, blob, num_blocks, tokens, last, "
    "round, weight, ticks, spoiled_seq FROM deltas WHERE site = ?1 ORDER BY seq",
    "incarnations": "SELECT * FROM incarnations WHERE site = ?1 ORDER BY seq",
    "joins": "SELECT * FROM joins WHERE site = ?1 ORDER BY seq",
    "rounds": "SELECT * FROM rounds WHERE ?1 != '' ORDER BY round",
    "versions": "SELECT version, parameters_digest, merged_tokens FROM versions WHERE ?1 != ''",
    "run": "SELECT state, term, ticks, round, version, merged_tokens, live FROM run WHERE ?1 != ''",
}


@SETTINGS
@given(histories(HONEST, max_size=80))
def test_r16_a_hub_that_reads_its_part_agrees_about_its_own(steps: list) -> None:
    run = played(steps)
    for site in SITES:
        check_agreement(run, site)


def check_agreement(run: Scenario, site: str) -> None:
    """The scoped fold of a site's reading, and the whole fold, tell the same of the site."""
    subjects = [COORDINATOR, OPERATOR, f"site.{site}"]
    mine = finish(run.log.read(0, subjects=subjects, limit=10**6))
    with Projection(":memory:", [LeaseTable(scope=site)], RUN, contiguous=False) as hub:
        hub.apply(mine)
        for what, sql in OWN.items():
            whole = run.projection.db.execute(sql, (site,)).fetchall()
            assert hub.db.execute(sql, (site,)).fetchall() == whole, what


def test_r16_a_hub_follows_a_cut_that_was_voided_for_anothers_delta() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.work("a", 0)
    bad = run.work("b", 1)
    run.decide(run.closing())
    run.refuse(bad, "b")
    check_agreement(run, "a")
    run.commit()
    check_agreement(run, "a")
    check_agreement(run, "b")
    assert run.view.run().version == 1
