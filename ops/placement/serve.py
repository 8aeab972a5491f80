"""Puts an agent together: its fold, its lock, its scheduler, and what it has spent so far."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from eventlog.errors import LockHeld
from eventlog.locks import exclusive
from eventlog.log import EventLog
from eventlog.projector import Projection
from leases.table import LeaseTable
from ops.home import Home
from ops.placement.agent import SCOPE, Agent, AgentTwin
from ops.placement.caps import Backoff, Ledger
from ops.placement.clerk import Clerk
from ops.placement.sites import Site, Sites
from ops.placement.slurm.client import Slurm
from ops.placement.slurm.commands import LOGIN_SHELL, Shell

Say = Callable[[str], None]


def ledger(home: Home, site: Site) -> Ledger:
    """What was spent at a site's centre, by all agents of this home."""
    path = home.root / "placement" / f"spent-{site.centre or site.name}.json"
    return Ledger(path, site.etiquette.caps())


def shell(site: Site) -> Shell:
    """How scheduler commands run at a site."""
    environment = dict(os.environ)
    if site.slurm_conf:
        environment["SLURM_CONF"] = site.slurm_conf
    prefix = LOGIN_SHELL if site.login_shell else ()
    return Shell(prefix, float(site.etiquette.timeout), environment)


def clerk(home: Home, run: str, site: Site, folder: Path, say: Say, **more: Any) -> Clerk:
    """The one who asks this site's scheduler. `more`: how it writes and reads the log."""
    first_s = float(site.etiquette.backoff)
    return Clerk(
        run=run,
        site=site,
        scheduler=Slurm(shell(site)),
        ledger=ledger(home, site),
        folder=folder,
        work=home.root / "placement" / run / site.name,
        user=getpass.getuser(),
        clock=time.time,
        say=say,
        backoff=Backoff(first_s),
        pause=Backoff(first_s),
        **more,
    )


@asynccontextmanager
async def serving(
    log: EventLog, home: Home, sites: Sites, name: str, folder: Path, say: Say, *, is_dry: bool
) -> AsyncIterator[Agent]:
    """The agent of one site, alone of its kind on this home. Raises AgentTwin, SitesInvalid."""
    site = sites.named(name)
    place = home.root / "placement"
    place.mkdir(parents=True, exist_ok=True)
    try:
        lock = exclusive(place / f"agent-{name}{'-dry' if is_dry else ''}", f"the agent of {name}")
    except LockHeld as error:
        raise AgentTwin(
            f"an agent of {name} runs here already ({place}): one agent a site and user; end it "
            "first"
        ) from error
    try:
        path = ":memory:" if is_dry else home.projection(log.run, f"agent-{name}")
        with Projection(path, [LeaseTable(SCOPE)], log.run, contiguous=False) as projection:
            yield Agent(
                log,
                projection,
                name,
                lambda **more: clerk(home, log.run, site, folder, say, **more),
                home.root,
                float(sites.replan),
                site.stop_file,
                is_dry,
                say=say,
            )
    finally:
        lock.release()
