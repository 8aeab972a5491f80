"""What a run waits for is said in words that are right where sites train beside the exchange."""

from __future__ import annotations

from tests.outer.test_waiting import said, two_at_work


def test_with_overlap_who_has_trained_its_quota_is_said_to_wait_for_the_version() -> None:
    run = two_at_work()
    run.train("alpha", 0, 1)
    run.deliver("alpha", 0, 1)
    run.commit()
    run.apply("alpha", 1)  # and beta has not
    assert run.open(alpha=1, beta=1) == ""
    run.train("beta", 2, 3)
    run.tick()
    assert said(run)[0].startswith(
        "round 2 waits for alpha (0 of 1 blocks), "
        "beta (its quota is trained, version 1 is on its way), "
    )
    run.apply("beta", 1)
    assert "beta (1 of 1 blocks)" in said(run)[0]  # never more than it is to have
