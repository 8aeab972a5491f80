"""The batch script of a job, rendered from the site's template: what is printed is what is run.

`{{name}}` is replaced and nothing else is touched, so `$` and `{}` keep the shell's meaning. A name
that is not known is an error before anything is submitted.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ops.placement.shapes import Shape
from ops.placement.sites import Site, SitesInvalid
from ops.placement.slurm.values import as_limit

DEFAULT_TEMPLATE = Path(__file__).parent.parent / "sites" / "job.sh.tmpl"
_PLACE = re.compile(r"\{\{\s*(\w*)\s*\}\}")
_NEEDED = ("directives", "command")


@dataclass(frozen=True, slots=True)
class Ask:
    """What one job of a run asks for. follows: it waits at the door for its predecessor (R11).
    begin_in_s: not before so many seconds from its submission on. chain: jobs of different chains
    run side by side, so each chain but the first is a site of its own."""

    run: str
    job_name: str
    shape: Shape
    follows: bool = False
    begin_in_s: int = 0
    chain: int = 0

    def slot(self, site: str) -> str:
        """The name under which the job takes part: SITE, SITE-2, SITE-3."""
        return f"{site}-{self.chain + 1}" if self.chain else site


def job_name(run: str, site: str, number: int, founded: str) -> str:
    """A name that says whose job it is, and that no other run's job has: at most 63 characters.
    `founded` is the id of the run's first event; equal arguments, equal name."""
    mark = hashlib.sha256(f"{founded}/{run}/{site}".encode()).hexdigest()[:8]
    return f"atoll-{run[:20].strip('-')}-{site[:16].strip('-')}-{mark}-{number}"


def render(site: Site, ask: Ask, folder: Path, logs: Path) -> str:
    """The script. folder: where a template of the site's own is looked for; logs: where the job
    writes. Raises SitesInvalid, OSError."""
    path = folder / site.template if site.template else DEFAULT_TEMPLATE
    text = path.read_text()
    values = {
        "directives": "\n".join(f"#SBATCH {one}" for one in _directives(site, ask, logs)),
        "command": _command(site, ask),
        "setup": site.setup.strip(),
        "run": ask.run,
        "site": ask.slot(site.name),
        "job_name": ask.job_name,
        "nodes": str(ask.shape.nodes),
        "walltime_s": str(ask.shape.walltime_s),
    }
    named = {match[1] for match in _PLACE.finditer(text)}
    if strange := named - values.keys():
        raise SitesInvalid(f"{path}: no such thing as {{{{{min(strange)}}}}}: {', '.join(values)}")
    if missing := [name for name in _NEEDED if name not in named]:
        raise SitesInvalid(f"{path}: without {{{{{missing[0]}}}}} no job of atoll comes of it")
    return _PLACE.sub(lambda match: values[match[1]], text)


def _directives(site: Site, ask: Ask, logs: Path) -> list[str]:
    """One option a line. No requeue: a job that Slurm started twice would be one the log does not
    know; its successor is our affair."""
    lines = [
        f"--job-name={ask.job_name}",
        f"--comment=atoll run {ask.run}, site {site.name}; stop it: scancel, or atoll place stop",
        f"--partition={site.partition}",
        f"--nodes={ask.shape.nodes}",
        f"--time={as_limit(ask.shape.walltime_s)}",
        "--no-requeue",
        f"--output={logs}/{ask.job_name}.out",
    ]
    lines += [f"--account={site.account}"] if site.account else []
    lines += [f"--begin=now+{ask.begin_in_s}"] if ask.begin_in_s > 0 else []
    return [_quoted(line) for line in lines] + list(site.options)


def _command(site: Site, ask: Ask) -> str:
    """`atoll site run`, which asks the job itself how much time it was granted."""
    words = ["site", "run", ask.run, ask.slot(site.name), "--data", site.data, "--walltime", "job"]
    words += ["--successor"] if ask.follows else []
    words += ["--broker", site.broker] if site.broker else []
    return " ".join([site.command, *map(shlex.quote, [*words, *site.site_options])])


def _quoted(line: str) -> str:
    """An option for #SBATCH, which knows quotes."""
    key, equals, value = line.partition("=")
    plain = re.fullmatch(r"[\w./:@%+,-]*", value)
    return line if plain else f'{key}{equals}"{value.replace(chr(34), "")}"'
