"""`atoll bench hostile` by the command line; what it measures of speed is not asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benches import quick


@pytest.mark.soak
def test_the_others_get_on_beside_a_hostile_site(tmp_path: Path) -> None:
    found = quick("hostile", tmp_path)
    values = {one["what"]: one["value"] for one in found["measures"]}
    assert found["name"] == "hostile" and len(values) == 7
    assert values["events of honest sites, beside a hostile site"] > 0
    assert values["events of the hostile site that were stored"] > 0
    assert values["peak memory of the broker"] < 1024
    assert values["peak memory of who folds the log"] < 1024
    assert list(tmp_path.glob("atoll-bench-*")) == []
