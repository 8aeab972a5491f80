"""R18: who signs is named in the log; what a named key did not sign counts for nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eventlog.codec import encode
from eventlog.events import COORDINATOR, OPERATOR, Event, KeysNamed, NamedKey
from eventlog.keys import Key
from eventlog.signatures import Anchor, seal
from leases.audit import Audit
from leases.findings import Findings
from tests.leases.stories import audited, broken, ending, records
from tests.support.history import created
from tests.support.scenario import RUN, Scenario

KEYS = {subject: Key.generate() for subject in (COORDINATOR, OPERATOR, "site.alpha", "site.beta")}


def naming(*subjects: str, reason: str = "they sign") -> KeysNamed:
    keys = tuple(NamedKey(subject=one, key=KEYS[one].public) for one in subjects)
    return KeysNamed(keys=keys, reason=reason)


def signing(*subjects: str) -> Scenario:
    """Two sites with a delta each to deliver; the keys of `subjects` are named, all sign."""
    scenario = Scenario(target={"epochs": 1})
    assert scenario.operator(naming(*subjects)) == ""
    scenario.keys = dict(KEYS)
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=2, beta=1) == ""
    return scenario


def test_r18_signed_deltas_and_commits_count_and_are_counted() -> None:
    scenario = signing(COORDINATOR, "site.alpha")
    scenario.work("alpha", 0, 1)
    scenario.work("beta", 2)
    scenario.commit()
    found = audited(scenario)
    assert (found.ok, found.versions, found.signatures) == (True, 1, 2), "beta has no named key"


@pytest.mark.parametrize("key", [None, Key.generate(), KEYS["site.beta"]])
def test_r18_a_delta_without_its_sites_signature_is_void_and_its_blocks_go_back(
    key: Key | None,
) -> None:
    scenario = signing("site.alpha", "site.beta")
    assert scenario.grant("alpha", 0, 1) == ""
    scenario.train("alpha", 0, 1)
    if key is None:
        del scenario.keys["site.alpha"]
    else:
        scenario.keys["site.alpha"] = key
    assert "signature" in scenario.says("alpha", scenario.delivery(0, 1))
    assert scenario.refuse(scenario.last, "alpha", "void") == ""
    assert scenario.states(0, 1) == ["available", "available"]
    assert audited(scenario).ok, "a site's void event breaks no promise"


@pytest.mark.parametrize("key", [None, KEYS[OPERATOR]])
def test_r18_a_forged_commit_moves_nothing_and_the_audit_names_it(key: Key | None) -> None:
    scenario = signing(COORDINATOR)
    scenario.work("alpha", 0, 1)
    assert scenario.decide(scenario.closing()) == ""
    forged = scenario.committing()
    payload = encode(forged, scenario.envelope(COORDINATOR, forged))
    assert "signature" in scenario.raw(COORDINATOR, seal(payload, key) if key else payload)
    assert scenario.view.run().version == 0
    sequence = scenario.last[0]
    assert broken(audited(scenario)) == [("P3", "R18", sequence)]
    assert scenario.decide(scenario.committing()) == "", "the right one still counts"
    assert scenario.view.run().version == 1


def test_r18_a_signature_moves_to_no_other_event() -> None:
    """Neither to another counter, nor behind another decision, nor to another run."""
    scenario = signing(COORDINATOR)
    scenario.work("alpha", 0, 1)
    assert scenario.decide(scenario.closing()) == ""
    event = scenario.committing()
    right = scenario.envelope(COORDINATOR, event)
    signed = seal(encode(event, right), KEYS[COORDINATOR])
    scenario.tick()
    assert scenario.raw(COORDINATOR, signed).startswith("counter")
    assert scenario.view.run().version == 0
    other = replace_run(right)
    assert "payload is of run" in scenario.raw(
        COORDINATOR, seal(encode(event, other), KEYS[COORDINATOR])
    )


def replace_run(envelope):  # type: ignore[no-untyped-def]
    return envelope._replace(run="another", n=envelope.n + 1)


def test_r18_a_dropped_key_signs_no_more_and_leaves_nobody_free() -> None:
    scenario = signing("site.alpha")
    dropped = naming("site.alpha").keys
    assert scenario.operator(KeysNamed(dropped=dropped, reason="it was stolen")) == ""
    assert scenario.grant("alpha", 0) == ""
    scenario.train("alpha", 0)
    assert "no key" in scenario.says("alpha", scenario.delivery(0))
    assert scenario.refuse(scenario.last, "alpha", "void") == ""
    fresh = Key.generate()
    named = (NamedKey(subject="site.alpha", key=fresh.public),)
    assert scenario.operator(KeysNamed(keys=named, reason="a new one")) == ""
    scenario.keys["site.alpha"] = fresh
    scenario.work("alpha", 0)


def test_r18_keys_are_named_by_the_key_that_created_the_run() -> None:
    scenario = signing(OPERATOR)
    stranger = naming("site.beta", reason="a stranger at the operator's desk")
    scenario.keys[OPERATOR] = Key.generate()
    assert "no key" in scenario.operator(stranger)
    scenario.keys[OPERATOR] = KEYS[OPERATOR]
    assert scenario.operator(stranger) == ""


def test_r18_a_run_that_names_its_operator_is_created_by_its_operator() -> None:
    scenario = Scenario(elect=False)
    keys = naming(OPERATOR).keys
    event = created(scenario.config, 22, keys=keys)
    pen = scenario.envelope(OPERATOR, event, n=1)
    for key, void in ((None, "missing"), (Key.generate(), "no key"), (KEYS[OPERATOR], "")):
        fresh = Unfounded()
        payload = encode(event, pen)
        said = fresh.raw(OPERATOR, seal(payload, key) if key else payload)
        assert void in said and bool(void) == bool(said)


class Unfounded(Scenario):
    """A log without an event."""

    def operator(self, event: Event) -> str:
        return ""

    def __init__(self) -> None:
        super().__init__(elect=False)


def finished() -> Scenario:
    scenario = signing(COORDINATOR, "site.alpha")
    scenario.work("alpha", 0, 1, 2, 3, 4, 5)
    scenario.commit()
    place = scenario.projection.position
    end = ending(scenario, through=place.sequence, log_digest=place.log_digest)
    assert scenario.decide(end) == ""
    return scenario


def held(scenario: Scenario, anchor: Anchor) -> Findings:
    audit = Audit(RUN)
    audit.feed(records(scenario))
    audit.hold_against(anchor)
    found = audit.result()
    audit.close()
    return found


def test_r18_the_end_leaves_an_anchor_that_tells_this_log_from_any_other() -> None:
    scenario = finished()
    anchor = Anchor.of(RUN, records(scenario)[-1], KEYS[COORDINATOR].public)
    assert held(scenario, anchor).ok
    assert held(scenario, anchor).anchored_through == anchor.through
    assert held(scenario, anchor).published == anchor.through
    for wrong in (
        replace(anchor, log_digest="0" * 64),
        replace(anchor, run="another"),
        replace(anchor, through=10_000),
        replace(anchor, key=Key.generate().public),
    ):
        assert [one[:2] for one in broken(held(scenario, wrong))] == [("P3", "R18")]
    forged = finished()  # the same story, told anew: other event ids
    assert broken(held(forged, anchor)) == [("P3", "R18", anchor.through)]
    assert audited(forged).ok, "which the log alone could not tell"


def test_r18_an_end_that_says_another_digest_is_found() -> None:
    scenario = signing(COORDINATOR)
    scenario.work("alpha", 0, 1, 2, 3, 4, 5)
    scenario.commit()
    through = scenario.projection.position.sequence
    assert scenario.decide(ending(scenario, through=through, log_digest="0" * 64)) == ""
    assert broken(audited(scenario)) == [("P3", "R18", scenario.last[0])]
