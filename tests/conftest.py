"""How the tests share the machine.

With `-n 2` those that watch real processes against time run one after another in one worker, in
their usual order, and all others in the other one, which takes only what the first leaves it.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_WATCHED = "tests/system/"  # tests that wait for what processes do within some time
_NICENESS = 10


def pytest_configure() -> None:
    """What a shell starts in its background is deaf to Ctrl-C, and so is all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The watched tests come first: they take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(_WATCHED))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """All watched tests go to one worker, those of another file together to any."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _WATCHED if nodeid.startswith(_WATCHED) else nodeid.partition("::")[0]

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker that is given other tests is the nice one from then on."""
    shared, watched = "PYTEST_XDIST_WORKER" in os.environ, item.nodeid.startswith(_WATCHED)
    if shared and not watched and os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
