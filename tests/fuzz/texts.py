"""Fuzzed: what Slurm says, credentials, anchors, keys, and files in TOML and JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from broker.credentials import Credentials, CredentialsInvalid
from eventlog.chain import Record
from eventlog.codec import Envelope, encode
from eventlog.errors import AtollError
from eventlog.events import JobShape, RunFinished
from eventlog.keys import Key, KeyInvalid, is_public, verifies
from eventlog.signatures import Anchor, AnchorInvalid, seal
from ops import configure
from ops.alarm import settings as alarms
from ops.configure import ConfigInvalid
from ops.placement import sites, snapshot
from ops.placement.scheduler import Machine
from ops.placement.sites import SitesInvalid
from ops.placement.slurm import ends, nodes, probes, queues, troubles
from ops.placement.snapshot import observed, probed
from tests.fuzz.logs import as_json_text
from tests.support.odd import KEYS, STEPS, changed

ROOT = Path(__file__).parents[2]
KEY = Key(bytes(32))

# -- Slurm -----------------------------------------------------------------------------------------

JOB = "atoll|7|PD|2-4|1-02:03:04|2026-01-02T03:04:05|N/A|N/A|10|gpu|me|name|with|bars|(Priority)"
SLURM = [
    "atoll|JOBID|ST|NODES|TIME_LIMIT|SUBMIT_TIME|START_TIME|END_TIME|PRIORITY|P|USER|NAME|REASON\n"
    + JOB,
    "atoll|gpu*|up|idle|12\natoll|gpu|up|mixed-|1K\natoll|gpu|down|drained*|4\n",
    "PartitionName=gpu AllowGroups=ALL State=UP TotalNodes=4 MaxTime=UNLIMITED\n",
    "ReservationName=maint StartTime=2026-01-01T00:00:00 EndTime=2026-01-02T00:00:00 NodeCnt=4 "
    "PartitionName=(null)\n",
    "JobId=17 ArrayJobId=17 JobName=a=b c JobState=RUNNING Reason=None NumNodes=2-2 "
    "TimeLimit=UNLIMITED SubmitTime=Unknown ExitCode=0:9\n   StartTime=2026-01-01T00:00:00\n",
    "17|CANCELLED by 1001|2026-01-01T00:00:00|Unknown|None|75:0|2|Partition_Limit|n|ame\n",
    "sbatch: Job 12 to start at 2026-01-01T00:00:00 using 8 processors on nodes n[1-2] in "
    "partition gpu\n  sbatch:   Preempts: 3,4\n",
    "sbatch: error: Batch job submission failed: Invalid account\n12;cluster\n",
    "PrivateData = accounts,jobs\n",
]
SLURM_SEEDS = [text.encode() for text in SLURM]
SLURM_TEXTS = st.builds(
    lambda lines, ends: ends.join(lines).encode(errors="replace"),
    st.lists(
        st.one_of(
            st.sampled_from(SLURM),
            st.text(alphabet="atol|JobId= 0123456789:-TN/AUK+.٣²\n", max_size=60),
        ),
        max_size=4,
    ),
    st.sampled_from(["\n", "\r\n", "|", " ", "\x85", "\x00"]),
)


def read_slurm(data: bytes) -> None:
    """Every reader, of what may be the output of any command."""
    text = data.decode(errors="replace")
    jobs = queues.read_queue(text) or []
    for job in jobs:
        assert isinstance(job.held, bool)
        assert ends.told_of(job).outcome
    for node in nodes.read_nodes(text):
        assert not (node.free and node.busy)
    machine = Machine(
        tuple(nodes.read_nodes(text)),
        tuple(nodes.read_partitions(text)),
        tuple(nodes.read_reservations(text)),
        nodes.read_hides_jobs(text),
    )
    snapshot.snapshot(observed("gpu", jobs, machine, {"7"}, 1_800_000_000).model_dump())
    for told in [*ends.read_job(text), *ends.read_accounts(text)]:
        assert told.outcome
    for code in (0, 1):
        probed(JobShape(nodes=1, walltime_s=60), probes.read_probe(code, text, text), 1_800_000_000)
        probes.read_submit(code, text, text)
    assert len(troubles.trouble(text).text) <= 1000


# -- credentials, keys, anchors --------------------------------------------------------------------

CREDENTIALS: dict[str, Any] = {
    "version": 1,
    "role": "site",
    "name": "alpha",
    "urls": "tls://a:4222,wss://b",
    "seed": KEY.seed,
    "ca": "",
    "num_replicas": 3,
}
CREDENTIALS_SEEDS = [as_json_text(CREDENTIALS), b"[]", b"null", b'{"version": 1}']
JSON_ODD = st.sampled_from((0, -1, 2**70, 1e300, "", "\ud800", "\x00", None, True, [], {}, [[]]))


def trees(*seeds: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """JSON a little wrong."""
    return st.builds(
        lambda one, steps, key, odd: as_json_text(changed(one, steps, key, odd)),
        st.sampled_from(seeds),
        STEPS,
        st.sampled_from(KEYS),
        JSON_ODD,
    )


CREDENTIALS_TREES = trees(CREDENTIALS)


def read_credentials(data: bytes, folder: Path) -> None:
    """What is read is of use: its key signs, its user is known to the broker by it."""
    path = folder / "atoll.creds"
    path.write_bytes(data)
    path.chmod(0o600)
    with contextlib.suppress(CredentialsInvalid):
        found = Credentials.read(path)
        assert is_public(found.user.public)
        assert verifies(found.key.public, data, found.key.sign(data))
        assert found.seed not in repr(found)
        assert found.num_replicas >= 1
        found.tls()
        found.write(folder / "again.creds")
        assert Credentials.read(folder / "again.creds") == found


def _anchor() -> Anchor:
    ended = RunFinished(
        outcome="target",
        reason="done",
        version=1,
        tokens=1,
        num_returned=0,
        parameters_digest="ab" * 32,
        momentum_digest="ab" * 32,
        residual_digest="ab" * 32,
        through=9,
        log_digest="cd" * 32,
    )
    payload = encode(ended, Envelope("e", ended.type, 1, "r", "coordinator", 1, 0.0))
    return Anchor.of("r", Record(10, "coordinator", 0, seal(payload, KEY)), KEY.public)


ANCHOR = _anchor()
ANCHOR_SEEDS = [ANCHOR.text().encode(), b"r:9:" + b"ab" * 32, b"{}", KEY.seed.encode()]
ANCHOR_TREES = trees(
    {
        "run": "r",
        "through": 9,
        "log_digest": "cd" * 32,
        "key": KEY.public,
        "event": ANCHOR.text().rsplit('"', 2)[1],
    }
)


def read_anchor(data: bytes) -> None:
    """An anchor is what its key signed, or is refused; a key is one to the last letter."""
    text = data.decode(errors="surrogateescape")
    with contextlib.suppress(AnchorInvalid):
        found = Anchor.parse(text)
        assert found.through >= 0
        assert Anchor.parse(found.text()) == found if found.key else found.payload == b""
    with contextlib.suppress(KeyInvalid):
        assert Key.of_seed(text).seed == text.strip()
    verifies(text, b"", bytes(64))


# -- configurations --------------------------------------------------------------------------------

CONFIGS = [path.read_bytes() for path in sorted((ROOT / "ops" / "configs").glob("*.toml"))]
SITES = b"""replan = "10m"
[[site]]
name = "alpha"
centre = "one"
partition = "gpu"
speed = 1.5
start_up = "90s"
shapes = [{nodes = 1, walltime = "12h"}, {nodes = 2, walltime = "1-00:00:00"}]
limits = {max_pending = 2}
etiquette = {poll = "2m"}
"""
ALARMS = b"""metrics = "127.0.0.1:9464"
[alerts]
command = ["/bin/true"]
webhook = "https://example.org/x"
stall_s = 60.0
"""
TOML_SEEDS = [*CONFIGS, SITES, ALARMS, b"\xff", b"a = 9e999\nb = 1979-05-27T07:32:00Z"]
VALUES = [
    *("-1", "0", "1", "99999999999999999999", "1e400", "nan", "-inf", "true", "''", "'x'", "[]"),
    *("{}", "[[]]", "[1,'a']", "1979-05-27", "'1.5h'", "'²h'", "'.s'", "'1:2:3:4'", "'s'", "'-'"),
    *("'99999999999d'", "'http://['", "'http://[::1'", "'s3://'", "'12:99999'", "9" * 5000),
    *("[" * 2000, "'" + "9" * 400 + "d'"),
]
TOML = st.builds(
    lambda one, at, value: _with(one, at, value),
    st.sampled_from(TOML_SEEDS[:-2]),
    st.integers(0, 200),
    st.sampled_from(VALUES),
)


def _with(text: bytes, at: int, value: str) -> bytes:
    """One of the lines `key = value` with another value."""
    lines = text.decode().splitlines()
    given = [k for k, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    key = lines[given[at % len(given)]].partition("=")[0]
    lines[given[at % len(given)]] = f"{key}= {value}"
    return "\n".join(lines).encode()


def read_toml(data: bytes, folder: Path) -> None:
    """As a run's configuration, as a sites file, as a coordinator's settings, as --set."""
    path = folder / "config.toml"
    path.write_bytes(data)
    text = data.decode(errors="replace")
    readers: list[tuple[Callable[[], object], type[AtollError]]] = [
        (lambda: configure.load(path), ConfigInvalid),
        (lambda: configure.load(path, text.splitlines()[-2:]), ConfigInvalid),
        (lambda: [one.profile() for one in sites.load(path).site], SitesInvalid),
        (lambda: alarms.load(path), ConfigInvalid),
    ]
    for read, error in readers:
        with contextlib.suppress(error):
            read()
