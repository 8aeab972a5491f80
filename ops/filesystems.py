"""Which filesystem a folder is on, and whether a database may lie there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Shared between machines: SQLite's WAL needs shared memory, which they do not carry
# (https://www.sqlite.org/wal.html, "All processes using a database must be on the same host").
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs", "ceph"}
    | {"afs", "orangefs", "pvfs2", "panfs", "wekafs", "glusterfs", "quobyte"}
    | {"fuse.ceph", "fuse.ceph-fuse", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs"}
)
MEMORY = frozenset({"tmpfs", "ramfs"})
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Filesystem:
    """`kind` as the kernel names it, "unknown" where it does not say; `mounted`: where."""

    kind: str
    mounted: str

    @property
    def is_network(self) -> bool:
        """Whether other machines may have it mounted too."""
        return self.kind in NETWORK


def filesystem(folder: Path, mounts: str | None = None) -> Filesystem:
    """The filesystem of a folder that exists, or of the nearest one above it that does. `mounts`:
    what /proc/self/mountinfo says (proc_pid_mountinfo(5)); read where it is None."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(errors="replace")
        except OSError:
            return Filesystem("unknown", "")
    where = folder.absolute()
    while not where.exists() and where != where.parent:
        where = where.parent
    where, best = where.resolve(), Filesystem("unknown", "")
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        at = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        covers = where == Path(at) or Path(at) in where.parents
        if covers and len(at) >= len(best.mounted):  # the later of two at one place is on top
            best = Filesystem(kind[0], at)
    return best
