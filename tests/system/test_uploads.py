"""Uploads of a real site that are cut again and again, and one that a killed site leaves behind."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from eventlog.chunked import META
from eventlog.events import BlobsReleased, DeltaPublished
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.tap import Published, Trap, chunk, tapped
from tests.support.watched import History

# A delta of several chunks, 16 MB: what is cut or killed in the middle is only a part of it.
LARGE = (
    "model.hidden_size=256",
    "model.intermediate_size=2048",
    "model.num_hidden_layers=4",
    "inner.steps=8",
)
NUM_CUTS = 10


@pytest.mark.settings(*LARGE)
async def test_a_site_whose_uploads_are_cut_ten_times_delivers_each_delta_once(
    own_broker: Served, fleet: Fleet
) -> None:
    dice = random.Random(5)
    async with tapped(fleet.url) as tap:
        fleet.routes["beta"] = tap.url
        fleet.coordinate()
        fleet.site("beta")
        log = fleet.history
        for _ in range(NUM_CUTS):
            skip = iter(range(dice.randrange(4)))
            trap = tap.set(Trap(lambda m, s=skip: _chunk(m) and next(s, None) is None, "after"))
            trap.then = tap.cut
            await fleet.until(lambda _, t=trap: t.sprung.is_set(), "a cut", 60)
        at = log.last
        await fleet.until(lambda _: log.new_versions(at) >= 2, "versions after the cuts", 60)
        await fleet.finish()
    merged = Counter(cut.delta for _, cut in log.merged())
    published = log.of(DeltaPublished, "site.beta")
    assert set(merged.values()) == {1}
    assert len({delta.blob for _, delta in published}) == len(published)
    messages, last = own_broker.streams()[f"ATOLL_{fleet.run.upper()}_BLOBS"]
    assert messages == last, "no chunk was stored twice, none had to be removed"
    await fleet.audit()


@pytest.mark.settings(*LARGE, "limits.transfer_s=6")
async def test_what_a_site_killed_in_the_middle_of_an_upload_leaves_is_swept(
    own_broker: Served, fleet: Fleet
) -> None:
    async with tapped(fleet.url) as tap:
        fleet.routes["beta"] = tap.url
        fleet.coordinate()
        fleet.site("alpha")
        fleet.site("beta")
        killing = Trap(_second(), "seen", lambda: fleet.kill_site("beta"))
        tap.set(killing)
        await fleet.until(lambda _: killing.sprung.is_set(), "an upload of beta", 60)
    assert killing.caught is not None
    orphan = killing.caught.subject.split(".")[3]

    def released(log: History) -> list[BlobsReleased]:
        return [one for _, one in log.of(BlobsReleased) if orphan in one.blobs]

    async with await connect(fleet.url, name="test") as connection:
        store = await JetStreamBlobs.open(connection, fleet.run)
        assert orphan in await store.unfinished()
        await fleet.until(lambda log: bool(released(log)), "its release", 60)
        (event,) = released(fleet.history)
        assert "orphans" in event.reason and "no event named them" in event.reason
        while orphan in await store.unfinished():
            await fleet.until(lambda _: True, "the removal")
    await fleet.finish()
    await fleet.audit()


def _chunk(message: Published) -> bool:
    return chunk(message) and not message.subject.endswith(META)


def _second():  # type: ignore[no-untyped-def]
    """Catches the second chunk of a blob."""
    seen: Counter[str] = Counter()

    def catches(message: Published) -> bool:
        if not _chunk(message):
            return False
        digest = message.subject.split(".")[3]
        seen[digest] += 1
        return seen[digest] == 2

    return catches
