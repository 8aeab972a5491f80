"""One round of probes without a run: what `atoll place probe` prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.home import Home
from ops.placement import serve
from ops.placement.script import Ask, render
from ops.placement.sites import Site
from ops.placement.slurm.client import Slurm
from ops.placement.slurm.troubles import Trouble


async def ask_all(
    home: Home, site: Site, folder: Path, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """A plain answer for each shape of a site, as far as the caps allow. Raises SitesInvalid."""
    scheduler, ledger = Slurm(serve.shell(site)), serve.ledger(home, site)
    work = home.root / "placement" / "probe"
    work.mkdir(parents=True, exist_ok=True)
    answers = []
    for shape in site.profile().shapes:
        now = clock()
        answer: dict[str, Any] = {"nodes": shape.nodes, "walltime_s": shape.walltime_s}
        answer["start_epoch_s"] = None
        wait_s = ledger.take("probes", now)
        if wait_s > 0:
            says = f"not asked: the cap on probes is reached for another {wait_s:.0f} s"
            answers.append({**answer, "outcome": "capped", "says": says})
            continue
        script = work / f"{site.name}.sh"
        script.write_text(render(site, Ask("probe", "atoll-probe", shape), folder, work))
        said = await scheduler.probe(script)
        if isinstance(said, Trouble):
            more: dict[str, Any] = {
                "outcome": str(said.kind),
                "start_epoch_s": None,
                "says": said.text,
            }
        elif said.start_s is None:
            more = {"outcome": "unknown", "says": "start unknown"}
        else:
            says = _in_words(said.start_s - now)
            more = {"outcome": "estimated", "start_epoch_s": said.start_s, "says": says}
        answers.append({**answer, **more})
    return answers


def _in_words(wait_s: float) -> str:
    """A wait for a person."""
    return "now" if wait_s < 60 else f"in {wait_s / 60:.0f} min, as Slurm reckons"
