"""P8: a site fetches no more of a blob than its event says that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.dir_blobs import DirBlobs
from eventlog.memory_log import MemoryLog
from sitehub.handover import Handover
from sitehub.hub import Hub
from sitehub.logic import HubLogic
from sitehub.state import HubState
from tests.support.scenario import RUN, Scenario


@pytest.mark.parametrize("excess", [0, 1])
async def test_an_update_that_is_longer_than_it_was_said_to_be_is_not_fetched(
    tmp_path: Path, excess: int
) -> None:
    store, source, said = DirBlobs(tmp_path / "store"), tmp_path / "update", list[str]()
    source.write_bytes(b"u" * 5000)
    blob = (await store.put(source)).digest
    run = Scenario({"epochs": 9})
    run.arrive("b")
    run.open(b=1)
    run.work("b", 0)
    assert run.decide(run.closing()) == ""
    commit = run.committing(update_blob=blob, update_bytes=5000 - excess)
    assert run.decide(commit) == ""
    hub = Hub(MemoryLog(RUN), store, "a", tmp_path / "a", tmp_path, say=said.append)
    hub.logic = HubLogic(HubState("a", run.view))
    hub._handover = Handover(tmp_path / "work", tmp_path, 1, lambda _: None, said.append)
    hub.logic.hub.fetching[blob] = 0.0
    await hub._fetch(blob)
    assert (hub.logic.hub.files == {blob}) == (excess == 0)
    assert (tmp_path / "work" / blob).exists() == (excess == 0)
    assert (blob in hub.logic.hub.lacking) == (excess == 1)
    assert [f"{blob} has 5,000 bytes, at most 4,999" in text for text in said] == [True] * excess
