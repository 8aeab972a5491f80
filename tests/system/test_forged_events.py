"""What others write on a site's subject is void: nobody stops, and the audit holds."""

from __future__ import annotations

from broker.client import Outgoing
from broker.connection import connect
from eventlog.codec import pack, unpack
from eventlog.events import RunFinished
from tests.support.fleet import Fleet

MAX = 2**64 - 1


def forgeries(valid: dict[str, object]) -> list[bytes]:
    """Payloads that no hub writes; `valid` is one that a hub wrote, as plain data."""
    deep = b"\x91" * 100_000 + b"\x90"
    beat = {**valid, "type": "site.heartbeat"}
    counted = [{**beat, "n": n} for n in (-1, 0, 1, MAX, -(2**63))]
    changed = [
        {"source": "coordinator"},
        {"source": "site.beta"},
        {"run": "another"},
        {"v": MAX},
        {"v": -(2**63)},
        {"incarnation": [MAX, "x"]},
        {"incarnation": [1, "x\0y"]},
        {"seen": [2**62, "x"]},
        {"term": MAX},
        {"type": "\x1b[2J\x9b2J\u202e"},
        {"type": "block.trained"},
        {"id": "x" * 900_000},
        {"at": float("nan")},
        {"data": {"phase": 1}},
        {"data": {"tokens": MAX, "phase": "training"}},
    ]
    return [
        b"",
        b"\x00",
        b"\xff" * 100,
        b"not an event",
        pack([1, 2]),
        deep,
        pack(valid) + b"tail",
        b"z" * (4 << 20),
        pack(valid),
        *(pack(one) for one in counted),
        *(pack({**beat, **one}) for one in changed),
    ]


async def test_forged_events_on_a_sites_subject_change_nothing(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")
    log = fleet.history
    mine = [entry for entry in log.entries if entry.record.subject == "site.alpha"]
    valid = unpack(mine[-1].record.payload)
    forged = forgeries(valid)
    async with await connect(fleet.url, name="forger") as connection:
        session = await connection.control.session(5.0)
        for payload in forged:
            for subject in ("site.alpha", "site.nobody", "agent.x", "x.y.z"):
                await session.publish(Outgoing(f"atoll.{fleet.run}.ev.{subject}", payload))
    at = log.last
    await fleet.until(lambda log: log.new_versions(at) >= 2, "two more versions", 60)
    assert {cut.site for _, cut in log.merged(at)} == {"alpha", "beta"}
    fleet.kill("coordinator")
    fleet.coordinate()  # recovers through all of it
    await fleet.finish()
    found = await fleet.audit("--deep")
    assert found["model_digest"] == log.of(RunFinished)[0][1].parameters_digest
    strange = {entry.record.sequence for entry in log.entries if entry.record.payload in forged}
    void = {one["sequence"] for one in found["void"]}
    assert strange - void == {mine[-1].record.sequence}, "only the one that was copied counts"
    for form in ((), ("--json",)):
        shown = await fleet.atoll("log", "show", fleet.run, *form)
        assert shown.code == 0 and not {"\x1b", "\x9b", "\u202e"} & set(shown.out)
    exported = await fleet.atoll("log", "export", fleet.run, "-o", str(fleet.root / "f.atoll"))
    assert exported.code == 0
    assert (await fleet.audit(target=str(fleet.root / "f.atoll")))["log_digest"]
    for form in ((), ("--json",)):
        assert (await fleet.atoll("watch", fleet.run, "--once", *form)).code == 0
