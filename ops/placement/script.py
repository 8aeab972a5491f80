"""The batch script of a job, rendered from the site's template: what is printed is what is run.

`{{name}}` is replaced and nothing else is touched, so `$` and `{}` keep the shell's meaning. A name
that is not known, or a field that the site needs and nobody filled in, is an error before anything
is submitted.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.placement.shapes import Shape
from ops.placement.sites import Site, SitesInvalid
from ops.placement.slurm.values import as_limit

DEFAULT_TEMPLATE = Path(__file__).parent.parent / "sites" / "job.sh.tmpl"
_PLACE = re.compile(r"\{\{\s*(\w*)\s*\}\}")
_NEEDED = ("directives", "command")
_TEXTS = (
    *("account", "options", "data", "command", "site_options", "broker", "credentials", "setup"),
    "notes",
)
_AGAIN = """\
# 75 says that it may be started again; after any other end of atoll it is not.
if [ "$code" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi"""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one job of a run asks for. follows: it waits at the door for its predecessor (R11).
    begin_in_s: not before so many seconds from its submission on. chain: jobs of different chains
    run side by side, so each chain but the first is a site of its own. requeues: it starts itself
    again when atoll ended with 75; never of an agent, whose log knows each job once."""

    run: str
    job_name: str
    shape: Shape
    follows: bool = False
    begin_in_s: int = 0
    chain: int = 0
    requeues: bool = False

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
    site = filled(site)
    path = folder / site.template if site.template else DEFAULT_TEMPLATE
    text = path.read_text()
    values = {
        "notes": "\n".join(f"# {one}" for one in site.notes),
        "directives": "\n".join(f"#SBATCH {one}" for one in _directives(site, ask, logs)),
        "command": _command(site, ask),
        "setup": site.setup.strip(),
        "again": _AGAIN.format(most=site.limits.max_chain) if ask.requeues else "",
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


def filled(site: Site) -> Site:
    """The site with its values in the places of its texts. Raises SitesInvalid, which names what is
    missing and says what it is."""
    if missing := site.missing:
        others = f"; then {', '.join(missing[1:])}" if missing[1:] else ""
        raise SitesInvalid(
            f"site {site.name}: fill in `{missing[0]}` in the sites file: "
            f"{site.needs[missing[0]]}{others}"
        )

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(put, value))
        return _PLACE.sub(found, value) if isinstance(value, str) else value

    def found(match: re.Match[str]) -> str:
        if match[1] not in site.values:
            raise SitesInvalid(f"site {site.name}: its [site.values] have no {match[1]}")
        return site.values[match[1]]

    return site.model_copy(update={name: put(getattr(site, name)) for name in _TEXTS})


def _directives(site: Site, ask: Ask, logs: Path) -> list[str]:
    """One option a line. No requeue of an agent's: a job that Slurm started twice would be one the
    log does not know; its successor is our affair."""
    lines = [
        f"--job-name={ask.job_name}",
        f"--comment=atoll run {ask.run}, site {site.name}; "
        "stop it: scancel; agents: atoll place halt",
        f"--partition={site.partition}",
        f"--nodes={ask.shape.nodes}",
        f"--time={as_limit(ask.shape.walltime_s)}",
        *(("--requeue", "--open-mode=append") if ask.requeues else ("--no-requeue",)),
        f"--output={logs}/{ask.job_name}.out",
    ]
    lines += [f"--signal=B:USR1@{site.signal}"] if site.signal else []
    lines += [f"--account={site.account}"] if site.account else []
    lines += [f"--begin=now+{ask.begin_in_s}"] if ask.begin_in_s > 0 else []
    return [_quoted(line) for line in lines] + list(site.options)


def _command(site: Site, ask: Ask) -> str:
    """`atoll site run`, which asks the job itself how much time it was granted."""
    words = ["site", "run", ask.run, ask.slot(site.name), "--data", site.data, "--walltime", "job"]
    words += ["--successor"] if ask.follows else []
    words += ["--broker", site.broker] if site.broker else []
    words += ["--creds", site.credentials] if site.credentials else []
    return " ".join([site.command, *map(shlex.quote, [*words, *site.site_options])])


def _quoted(line: str) -> str:
    """An option for #SBATCH, which knows quotes."""
    key, equals, value = line.partition("=")
    plain = re.fullmatch(r"[\w./:@%+,-]*", value)
    return line if plain else f'{key}{equals}"{value.replace(chr(34), "")}"'
