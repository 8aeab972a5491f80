"""How the tests share the machine.

With `-n 2` those that watch real processes against time run one after another in one worker, in
their usual order, and all others in the other one, which takes only what the first leaves it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent
_WATCHED = ("system",)  # folders whose tests wait for what processes do within some time
_NICENESS = 10


@pytest.hookimpl(tryfirst=True)  # before the plugin reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One group of all watched tests, which comes first; a group of each other file."""
    items.sort(key=lambda item: not _is_watched(item.path))
    for item in items:
        name = "watched" if _is_watched(item.path) else str(item.path.relative_to(_ROOT))
        item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker that is given other tests is the nice one from then on."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    if shared and not _is_watched(item.path) and os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def _is_watched(path: Path) -> bool:
    return path.relative_to(_ROOT).parts[0] in _WATCHED
