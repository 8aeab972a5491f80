"""A site's own network: a namespace joined to this machine by one cable, which can be pulled out.

Needs root, `ip` and `tc`. Where they are missing a test is skipped and says so; with CI (or
ATOLL_CI, which .ci/run sets) in the environment it fails, for there nobody reads what was skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_numbers = itertools.count(1)
_TOOLS = ("ip", "tc")
_ETC, _PLACES = Path("/etc/netns"), Path("/run/netns")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Network:
    """One namespace. `host`: the address at which it finds this machine; `own`: at which this
    machine finds it."""

    name: str
    host: str
    own: str
    inner: str
    outer: str

    def knows(self, addresses: dict[str, str]) -> None:
        """Names that the processes of `inside` know from now on, as if from /etc/hosts."""
        file = _ETC / self.name / "hosts"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{at} {name}\n" for name, at in addresses.items()))

    def cut(self) -> None:
        """Pull the cable: nobody is told, connections stay as they are and nothing passes."""
        _run(*inside(self.name), "ip", "link", "set", self.inner, "down")

    def mend(self) -> None:
        _run(*inside(self.name), "ip", "link", "set", self.inner, "up")

    def slow(self, kbit_per_s: int) -> None:
        """Both directions take no more than so much (tbf)."""
        burst = max(8, kbit_per_s // 800)  # kB: of ten milliseconds
        rate = ("rate", f"{kbit_per_s}kbit", "burst", f"{burst}kb", "latency", "2s")
        _run("tc", "qdisc", "replace", "dev", self.outer, "root", "tbf", *rate)
        _run(*inside(self.name), "tc", "qdisc", "replace", "dev", self.inner, "root", "tbf", *rate)

    def fast(self) -> None:
        _run("tc", "qdisc", "del", "dev", self.outer, "root")
        _run(*inside(self.name), "tc", "qdisc", "del", "dev", self.inner, "root")


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A namespace for as long as the `with` block; what still runs in it then has no network."""
    require()
    _sweep()
    number = next(_numbers)
    tag = f"{os.getpid()}-{number}"
    inner, outer = f"ai{tag}"[:15], f"ao{tag}"[:15]
    subnet = f"198.18.{os.getpid() % 250}.{4 * (number % 60)}"  # RFC 2544: for tests, never routed
    first, last = subnet.rpartition(".")[0], int(subnet.rpartition(".")[2])
    ends = f"{first}.{last + 1}", f"{first}.{last + 2}"
    here = Network(f"atoll-{tag}", *ends, inner, outer)
    _run("ip", "netns", "add", here.name)
    try:
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", inner, "netns", here.name)
        _run("ip", "addr", "add", f"{here.host}/30", "dev", outer)
        _run("ip", "link", "set", outer, "up")
        within = inside(here.name)
        _run(*within, "ip", "addr", "add", f"{here.own}/30", "dev", inner)
        for device in ("lo", inner):
            _run(*within, "ip", "link", "set", device, "up")
        yield here
    finally:
        _remove(here.name, outer)


def _sweep() -> None:
    """What tests left that were killed. The number in a name is the process that made it."""
    for place in _PLACES.glob("atoll-*-*"):
        _, pid, number = place.name.split("-")
        if not Path("/proc", pid).exists():
            _remove(place.name, f"ao{pid}-{number}"[:15])


def _remove(name: str, outer: str) -> None:
    shutil.rmtree(_ETC / name, ignore_errors=True)
    for command in (("ip", "link", "del", outer), ("ip", "netns", "del", name)):
        _try(*command)


def inside(name: str) -> list[str]:
    """What a command line begins with whose process shall run in a namespace."""
    return [shutil.which("ip", path=PATH) or "ip", "netns", "exec", name]


def require(*more: str) -> None:
    """Skip, or fail in CI, where this machine cannot do it, or lacks one of `more` tools."""
    missing = [f"`{tool}`" for tool in (*_TOOLS, *more) if shutil.which(tool, path=PATH) is None]
    missing += ["root"] if os.geteuid() else []
    if not missing:
        return
    why = f"networks of one's own need {' and '.join(missing)}"
    if os.environ.get("CI") or os.environ.get("ATOLL_CI"):
        pytest.fail(f"{why}, which CI must have")
    pytest.skip(why)


def _run(*command: str) -> None:
    done = _try(*command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": PATH}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
