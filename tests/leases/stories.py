"""Histories that the audit's tests tell, and how they read its findings."""

from __future__ import annotations

from typing import Any

from eventlog.chain import Record
from eventlog.events import EpochClosed, LeaseStolen, RunFinished
from leases.audit import Audit
from leases.findings import Findings
from leases.life import Life
from tests.support.scenario import RUN, Scenario, finish, name


def records(scenario: Scenario) -> list[Record]:
    """The whole log of a scenario."""
    return finish(scenario.log.read(0, limit=100_000))


def audited(scenario: Scenario, life: Life | None = None) -> Findings:
    """What an audit says of it."""
    audit = Audit(RUN, life=life)
    audit.feed(records(scenario))
    found = audit.result()
    audit.close()
    return found


def broken(found: Findings) -> list[tuple[str, str, int]]:
    """Promise, rule and sequence of every violation."""
    return [(one.promise, one.rule, one.sequence) for one in found.violations]


def closing_epoch(tokens: int = 6 * 32 - 16) -> EpochClosed:
    """Epoch 0, said to be merged as a whole: five blocks of 32 tokens, a short one of 16."""
    return EpochClosed(epoch=0, blocks=6, tokens=tokens, num_quarantined=0, reason="all merged")


def ending(scenario: Scenario, **changes: object) -> RunFinished:
    """The end of the run as it stands, right in everything but `changes`."""
    version = scenario.view.run().version
    fields = {
        "outcome": "target",
        "version": version,
        "tokens": scenario.view.run().merged_tokens,
        "num_returned": scenario.view.num_held(),
        "parameters_digest": name(f"version {version}"),
        "momentum_digest": name(f"momentum {version}"),
        "residual_digest": name(f"residual {version}"),
        "reason": "the target is reached",
    }
    return RunFinished.model_validate({**fields, **changes})


def delivered() -> Scenario:
    """Two sites; each has delivered blocks of round 1, alpha 0 and 1, beta 2."""
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=2, beta=1) == ""
    scenario.work("alpha", 0, 1)
    scenario.work("beta", 2)
    return scenario


def whole_run() -> Scenario:
    """One epoch of six blocks: a crash of beta that costs it two blocks, a steal from alpha, a
    refused delta, three rounds, the end."""
    scenario = delivered()
    scenario.commit()
    assert scenario.open(alpha=2, beta=2) == ""
    assert scenario.grant("beta", 3, 4) == ""
    scenario.train("beta", 3)
    assert scenario.depart("beta") == ""
    assert scenario.grant("alpha", 3, 4, 5) == ""
    stolen = LeaseStolen(
        incarnation=scenario.sites["alpha"], site="alpha", epoch=0, blocks=(5,), reason="idle"
    )
    assert scenario.decide(stolen) == ""
    scenario.train("alpha", 3, 4)
    bad = scenario.deliver("alpha", 3)
    assert scenario.refuse(bad, "alpha") == ""
    scenario.deliver("alpha", 4)
    scenario.commit()
    assert scenario.open(alpha=2) == ""
    scenario.work("alpha", 3, 5)
    scenario.commit()
    assert scenario.decide(closing_epoch()) == ""
    assert scenario.decide(ending(scenario)) == ""
    return scenario


def alone(scenario: Scenario) -> tuple[str, str, str, str]:
    """Promise, rule, site and block of the one finding, which is about the last event."""
    (one,) = audited(scenario).violations
    assert one.sequence == scenario.last[0] and one.what and one.expected, one
    return (one.promise, one.rule, one.site, one.block)


def assert_clean(scenario: Scenario) -> None:
    assert audited(scenario).violations == []


def granted(**fields: Any) -> Scenario:
    """alpha and beta live; round 1 is open for both."""
    scenario = Scenario(target=fields.pop("target", {"epochs": 1}), **fields)
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=3, beta=3) == ""
    return scenario


def speak(scenario: Scenario, site: str) -> None:
    """A site says something that changes nothing."""
    assert scenario.apply(site, scenario.view.run().version) == ""
