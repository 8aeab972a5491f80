"""ATOLL_HOME: what this machine keeps. A cache, except for credentials.

    projections/RUN/NAME.sqlite   folds of a run's log; deleting them costs a replay, no more
    exports/RUN.atoll             logs that were exported or, by the demo, left behind
    imports/RUN/                  logs that were imported: log.atoll, blobs/
    sites/RUN/NAME/               what a site keeps: checkpoints, blobs in flight, its lock
    coordinators/RUN/N/           blobs a coordinator works on
    scratch/RUN/N/                blobs fetched for a look, gone with the process that looks
    data/RUN                      where the data of a run lie that was created here
    logs/                         what background processes said
    peers/NAME/                   environments of programs that benchmarks compare with
    broker/                       store of a broker started here, and how to reach it
    atoll.creds                   credentials for a broker elsewhere, mode 0600: the one thing here
                                  that cannot be made again

Databases use WAL, which network filesystems do not carry: the home must be node-local.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eventlog.errors import AtollError, LockHeld
from eventlog.locks import exclusive
from ops.filesystems import filesystem

DEFAULT = ".atoll"  # in the working directory
LOG_SUFFIX = ".atoll"  # of exported logs


class HomeUnfit(AtollError):
    """ATOLL_HOME lies where no database may."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folders below one root, absolute. Asking for a folder makes it; nothing else writes."""

    root: Path

    @classmethod
    def find(cls) -> Home:
        """The home of this process: $ATOLL_HOME, or `.atoll` in the working directory."""
        return cls(Path(os.environ.get("ATOLL_HOME") or DEFAULT).absolute())

    def projection(self, run: str, name: str) -> Path:
        """The database of one fold of a run. Raises HomeUnfit."""
        self._fit()
        return self._made("projections", run) / f"{name}.sqlite"

    def export(self, run: str) -> Path:
        """Where a run's log is exported to unless somebody says otherwise."""
        return self._made("exports") / f"{run}{LOG_SUFFIX}"

    def imported(self, run: str) -> Path:
        """The folder of a run's imported log and blobs; not made by asking."""
        return self.root / "imports" / run

    def site(self, run: str, name: str) -> Path:
        """What the site `name` keeps of a run on this machine. Raises HomeUnfit."""
        self._fit()
        return self._made("sites", run, name)

    def coordinator(self, run: str, number: int) -> Path:
        """Blobs that a coordinator of a run works on; a cache."""
        return self._made("coordinators", run, str(number))

    @contextmanager
    def scratch(self, run: str) -> Iterator[Path]:
        """A folder of the caller's own for blobs fetched for a look at a run. It goes at the end,
        and with it what callers before left whom something ended at once."""
        shared = self._made("scratch", run)
        for folder in shared.iterdir():
            if folder.is_dir():
                _remove_unless_used(folder)
        own = shared / secrets.token_hex(8)
        lock = exclusive(own, "the folder")  # before there is a folder to be swept
        try:
            own.mkdir()
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    def baseline(self, name: str) -> Path:
        """Checkpoint and result of the baseline of a configuration."""
        return self._made("baselines", name)

    def note_data(self, run: str, folder: Path) -> None:
        """Remember where the data of a run lie on this machine."""
        (self._made("data") / run).write_bytes(os.fsencode(folder.absolute()))

    def data_of(self, run: str) -> Path | None:
        """Where the data of a run lie, if it was created, or forked from such a one, here."""
        try:
            return Path(os.fsdecode((self.root / "data" / run).read_bytes()))
        except OSError:
            return None

    def note_fork(self, run: str, new: str) -> None:
        """A fork trains on its parent's data: what is remembered of one holds for the other."""
        if (folder := self.data_of(run)) is not None:
            self.note_data(new, folder)

    def process_log(self, name: str) -> Path:
        """Where a background process writes what it says."""
        return self._made("logs") / f"{name}.log"

    def peer(self, name: str) -> Path:
        """The Python environment of a program that a benchmark compares with."""
        return self._made("peers") / name

    @property
    def broker(self) -> Path:
        """The store of the broker started here; not made by asking."""
        return self.root / "broker"

    @property
    def credentials(self) -> Path:
        """Who this machine is to a broker that asks; not made by asking."""
        return self.root / "atoll.creds"

    def _fit(self) -> None:
        found = filesystem(self.root)
        if found.is_network:
            raise HomeUnfit(
                f"ATOLL_HOME {self.root} is on {found.kind}, a network filesystem, where databases "
                "get damaged; set it to a folder on a disk of this machine"
            )

    def _made(self, *parts: str) -> Path:
        folder = self.root.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _remove_unless_used(folder: Path) -> None:
    try:
        lock = exclusive(folder, "the folder")
    except LockHeld:
        return
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
