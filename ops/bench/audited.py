"""Audits one exported log and says what it took; a process of its own, so its memory is its own.

`python -m ops.bench.audited FILE` prints {"cpu_s", "peak_mb", "events", "violations"}. Time is the
processor's, so that a machine with other work to do does not bend the curve.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ops.auditing import audited_file


def main() -> None:
    """See the module."""
    began = time.process_time()
    with audited_file(Path(sys.argv[1]), None, lambda done, total: None) as audit:
        found = audit.result()
    answer = {
        "cpu_s": time.process_time() - began,
        "peak_mb": _peak_mb(),
        "events": found.events,
        "violations": len(found.violations),
    }
    print(json.dumps(answer))


def _peak_mb() -> float:
    """The largest resident set of this process, in 10^6 bytes. Linux tells it per address space;
    `getrusage` would count the parent's from before the exec."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes, on macOS


if __name__ == "__main__":
    main()
