"""A reviewer's bundle: a log and all that is needed to verify it, in one archive.

    RUN/log.atoll          the log, with its blobs where they were asked for
    RUN/anchor.json        the anchor, where the run has finished and its end is signed
    RUN/manifest.json      of the training data, where they were at hand
    RUN/versions.json      of atoll, with a digest of its source, of Python and the machine
    RUN/environment.txt    every installed package with its version, for pip install -r
    RUN/verify.sh          the one command, given the anchor that was published; SHA256SUMS is
                           what it begins with

The archive is uncompressed tar without times or owners: the same content gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from importlib import metadata
from pathlib import Path

from eventlog.codec import decode
from eventlog.errors import AtollError
from eventlog.events import RunCreated
from eventlog.export import read_export, read_header
from eventlog.signatures import AnchorInvalid
from ops.anchoring import NotFinished, of_file

ROOMS = ("broker", "eventlog", "leases", "ops", "outer", "sitehub")
_VERIFY = """\
#!/bin/sh
# Verifies this run: needs atoll {version} (environment.txt: what it was made with).
#
#   sh verify.sh ANCHOR    ANCHOR: what the run's owner published: that line, or a file of it
#
# Without ANCHOR nothing tells this bundle from a forged one: whoever made it also made {own}.
set -eu
published=${{1-}}
if [ -f "$published" ]; then published=$(cat "$published"); fi
cd "$(dirname "$0")"
sha256sum --check --quiet SHA256SUMS
atoll log verify log.atoll
if [ -z "$published" ]; then
  echo "not held against what was published: sh verify.sh ANCHOR" >&2
  exec atoll audit log.atoll{options}
fi
exec atoll audit log.atoll{deep} --anchor "$published"
"""


class BundleInvalid(AtollError):
    """What should go into the bundle does not belong to the run."""


def write_bundle(log_file: Path, target: Path, data: Path | None) -> None:
    """Write the archive, whole or not at all. Raises BundleInvalid, OSError."""
    run = read_header(log_file)
    parts = {
        "versions.json": json.dumps(versions(), indent=1, sort_keys=True) + "\n",
        "environment.txt": environment(),
    }
    if data is not None:
        parts["manifest.json"] = _manifest(log_file, data)
    deep = options = " --deep" if _holds_blobs(log_file) else ""
    own = "SHA256SUMS"
    try:
        parts["anchor.json"] = of_file(log_file).text() + "\n"
        options, own = f"{deep} --anchor anchor.json", "anchor.json"
    except (NotFinished, AnchorInvalid):
        pass  # a run that goes on, or names no keys, has none
    parts["verify.sh"] = _VERIFY.format(
        version=versions()["atoll"], options=options, deep=deep, own=own
    )
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}
    with log_file.open("rb") as file:
        sums["log.atoll"] = hashlib.file_digest(file, "sha256").hexdigest()
    parts["SHA256SUMS"] = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    part = target.with_name(f".{target.name}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in sorted(parts.items()):
            body = text.encode()
            archive.addfile(_entry(f"{run}/{name}", len(body)), io.BytesIO(body))
        with log_file.open("rb") as file:
            archive.addfile(_entry(f"{run}/log.atoll", log_file.stat().st_size), file)
    part.replace(target)


def versions() -> dict[str, str]:
    """Of the code and what runs it. `source`: sha256 over names and bytes of every Python file of
    every room, in order."""
    try:
        version = metadata.version("atoll")
    except metadata.PackageNotFoundError:
        version = "from a checkout"
    return {
        "atoll": version,
        "source": _source_digest(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def environment() -> str:
    """Installed packages, one a line, as pip reads them; atoll itself stands in versions.json."""
    found = {
        f"{one.metadata['Name']}=={one.version}"
        for one in metadata.distributions()
        if one.metadata["Name"] not in (None, "atoll")
    }
    return "".join(f"{line}\n" for line in sorted(found, key=str.lower))


def _source_digest() -> str:
    root, whole = Path(__file__).parents[1], hashlib.sha256()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            body = path.read_bytes()
            whole.update(f"{path.relative_to(root).as_posix()} {len(body)}\n".encode() + body)
    return whole.hexdigest()


def _manifest(log_file: Path, data: Path) -> str:
    """The manifest of the data, if they are the run's."""
    from sitehub.manifest import FILE_NAME, read

    found, created = read(data), decode(next(read_export(log_file))).event
    wanted = created.data.manifest_digest if isinstance(created, RunCreated) else ""
    if found.digest() != wanted:
        raise BundleInvalid(
            f"{data} is not what the run was trained on: its manifest is {found.digest()[:12]}, "
            f"the run's {wanted[:12]}"
        )
    return (data / FILE_NAME).read_text()


def _holds_blobs(log_file: Path) -> bool:
    from ops.logfile import verify

    return bool(verify(log_file).num_blobs)


def _entry(name: str, num_bytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = num_bytes, 0o755 if name.endswith(".sh") else 0o644
    return entry
