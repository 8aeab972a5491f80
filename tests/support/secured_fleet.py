"""A run over a broker with TLS, keys and permissions, each process with its own credentials."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.fleet import Fleet
from tests.support.forkserver import ForkServer
from tests.support.secured import Issuing
from tests.support.watched import History


@asynccontextmanager
async def secured_fleet(
    broker: Issuing,
    sites: Sequence[str],
    root: Path,
    data: Path,
    config: Path,
    parents: tuple[str, ForkServer],
    *overrides: str,
    **options: bool,
) -> AsyncIterator[Fleet]:
    """A run that was just created and names everybody's keys; `options`: of the sites' credentials,
    which are issued."""
    for name in sites:
        broker.add("site", name, **options)
    operator = broker.credentials("operator")
    run = f"{root.name[:20].replace('_', '-').strip('-')}-{os.getpid()}"
    fleet = Fleet(root / "machine", operator.urls, data, config, run, *parents)
    fleet.variables = {"ATOLL_CREDS": str(broker.file("operator"))}
    fleet.own = {"coordinator": {"ATOLL_CREDS": str(broker.file("coordinator"))}}
    fleet.own |= {name: {"ATOLL_CREDS": str(broker.file("site", name))} for name in sites}
    keys = await fleet.atoll("broker", "keys", "--dir", str(broker.deployment.root))
    (root / "keys").write_text(keys.out)
    options = [part for pair in (f"name={run}", *overrides) for part in ("--set", pair)]
    created = await fleet.atoll(
        *("run", "create", str(config), "--data", str(data)),
        *("--keys", str(root / "keys"), *options),
    )
    assert created.code == 0, created
    try:
        async with History.watched(operator.urls, run, operator) as fleet.history:
            yield fleet
    finally:
        fleet.close()
