"""squeue, sinfo, scontrol and sacct, read: what they say in all versions, and what they do not."""

from __future__ import annotations

import pytest

from ops.placement.slurm.ends import exit_code, read_accounts, read_job
from ops.placement.slurm.nodes import read_nodes, read_partitions, read_reservations
from ops.placement.slurm.queues import Phase, phase_of, read_queue
from tests.placement.slurm.recorded import FILE

HEADER = (
    "atoll|JOBID|ST|NODES|TIME_LIMIT|SUBMIT_TIME|START_TIME|END_TIME|PRIORITY|PARTITION|USER|NAME|"
    "REASON\n"
)
PENDING = "atoll|42|PD|4|2:00:00|1796021740|1796023540|1796025340|4294901758|gpu|ann|run-1|"
SPACED = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)


def test_a_queue_is_read_line_by_line() -> None:
    (job,) = read_queue(HEADER + PENDING + "Resources\n")
    assert (job.job_id, job.phase, job.nodes, job.limit_s) == ("42", Phase.PENDING, 4, 7200)
    assert (job.submitted_s, job.start_s) == (1796021740, 1796023540)
    assert (job.priority, job.user, job.name, job.reason) == (
        4294901758,
        "ann",
        "run-1",
        "Resources",
    )
    assert not job.held


@pytest.mark.parametrize("reason", [SPACED, f"({SPACED})", "QOSMaxJobsPerUserLimit", "Priority"])
def test_a_reason_may_hold_blanks(reason: str) -> None:
    (job,) = read_queue(HEADER + PENDING + reason + "\n")
    assert job.reason == reason.strip("()")


def test_a_banner_before_behind_and_between_is_ignored() -> None:
    noise = "Welcome | 12 | PD | to\n\tatoll rocks\n"
    jobs = read_queue(noise + HEADER + noise + PENDING + "Priority\n" + noise)
    assert jobs is not None and [job.job_id for job in jobs] == ["42"]


def test_an_empty_queue_is_told_from_no_answer() -> None:
    assert read_queue(HEADER) == []
    assert read_queue("Welcome to the login node\n" + HEADER) == []
    for silence in ("", "Welcome\n", "slurm_load_jobs error: Unable to contact slurm controller\n"):
        assert read_queue(silence) is None


def test_a_line_that_was_cut_off_is_no_job() -> None:
    assert read_queue(HEADER + "atoll|42|PD|4|2:0") == []


def test_names_of_others_may_hold_bars() -> None:
    line = "atoll|2|R|4|30:00|1796021740|1796021740|1796023540|1|gpu|root|a|b c|None\n"
    (job,) = read_queue(HEADER + line)
    assert (job.name, job.reason) == ("a|b c", "None")


@pytest.mark.parametrize("start", ["N/A", "Unknown", "", "NONE"])
def test_a_start_that_nobody_knows_stays_unknown(start: str) -> None:
    (job,) = read_queue(HEADER + PENDING.replace("1796023540", start) + "Priority\n")
    assert job.start_s is None


@pytest.mark.parametrize(
    ("job_id", "nodes", "limit", "want"),
    [
        ("42_[0-3%2]", "1", "30:00", (1, 1800)),
        ("42_7", "1-4", "UNLIMITED", (1, None)),
        ("42+1", "2K", "INVALID", (2048, None)),
        ("42", "", "Partition_Limit", (None, None)),
    ],
)
def test_arrays_ranges_and_large_numbers(
    job_id: str, nodes: str, limit: str, want: tuple[int | None, int | None]
) -> None:
    line = f"atoll|{job_id}|PD|{nodes}|{limit}|1796021740|N/A|N/A|0.5|gpu|ann|x|Priority\n"
    (job,) = read_queue(HEADER + line)
    assert (job.job_id, (job.nodes, job.limit_s)) == (job_id, want)


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ("PD RD RF RH RQ RV SE", Phase.PENDING),
        ("R CF S ST SI RS SO", Phase.RUNNING),
        ("CG COMPLETING", Phase.ENDING),
        ("CD CA F TO NF PR BF DL OOM LF", Phase.GONE),
        ("TIMEOUT COMPLETED FAILED OUT_OF_MEMORY", Phase.GONE),
        ("XX NEW", Phase.UNKNOWN),
    ],
)
def test_states_of_all_versions(states: str, phase: Phase) -> None:
    assert {phase_of(state) for state in states.split()} == {phase}
    assert phase_of("CANCELLED by 1001") == phase_of("CANCELLED+") == Phase.GONE
    assert phase_of("") == Phase.UNKNOWN


@pytest.mark.parametrize(
    ("reason", "held"),
    [
        ("JobHeldUser", True),
        ("JobHeldAdmin", True),
        ("Dependency", True),
        ("BeginTime", True),
        ("AssocGrpCPUMinutesLimit", True),
        ("AssocGrpBillingMinutes", True),
        ("QOSMaxJobsPerUserLimit", True),
        ("PartitionDown", True),
        ("launch failed requeued held", True),
        ("Priority", False),
        ("Resources", False),
        ("None", False),
        (SPACED, False),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", False),
    ],
)
def test_who_waits_for_its_turn_and_who_for_something_else(reason: str, held: bool) -> None:
    (job,) = read_queue(HEADER + PENDING + reason + "\n")
    assert job.held is held


@pytest.mark.parametrize(
    ("state", "free", "busy"),
    [
        ("idle", True, False),
        ("planned", True, False),  # 21.08 on: idle, and chosen by the backfill
        ("idle~", True, False),  # asleep to save power
        ("powered_down", True, False),
        ("idle*", False, False),  # does not answer
        ("idle$", False, False),  # maintenance
        ("mixed", False, True),
        ("mixed-", False, True),
        ("allocated", False, True),
        ("completing", False, True),
        ("reserved", False, True),
        ("allocated*", False, False),
        ("draining", False, False),
        ("drained", False, False),
        ("down", False, False),
        ("down*", False, False),
        ("maint", False, False),
        ("inval", False, False),  # 22.05 on
        ("fail", False, False),
        ("unknown", False, False),
        ("something-new", False, False),
    ],
)
def test_nodes_by_state(state: str, free: bool, busy: bool) -> None:
    (nodes,) = read_nodes(f"Welcome\natoll|gpu|up|{state}|3\n")
    assert (nodes.partition, nodes.up, nodes.num) == ("gpu", True, 3)
    assert (nodes.free, nodes.busy) == (free, busy)


def test_a_partition_that_is_down_is_not_up() -> None:
    for avail in ("down", "drain", "inact"):
        assert not read_nodes(f"atoll|gpu|{avail}|idle|3\n")[0].up
    assert read_nodes("atoll|gpu*|up|idle|3\n")[0].partition == "gpu"


def test_partitions_that_start_jobs_and_that_do_not() -> None:
    said = (
        "PartitionName=gpu AllowGroups=ALL Default=YES QoS=N/A MaxNodes=UNLIMITED "
        "MaxTime=1-00:00:00 State=UP TotalCPUs=32 TotalNodes=4 JobDefaults=(null)\n"
        "PartitionName=old MaxNodes=2 MaxTime=UNLIMITED State=DRAIN TotalNodes=1K\n"
    )
    gpu, old = read_partitions(said)
    assert (gpu.name, gpu.up) == ("gpu", True)
    assert (old.name, old.up) == ("old", False)


def test_the_recorded_reservation_is_read() -> None:
    line = next(
        line for line in FILE.read_text().splitlines() if line.startswith("ReservationName=")
    )
    one = read_reservations(f"Welcome Name=x\n{line}\n")[0]
    assert (one.name, one.num_nodes, one.partition) == ("maint", 4, "")
    assert one.end_s - one.start_s == 7200
    assert one.start_s == 1_795_973_601  # 2026-11-29T17:33:21 UTC


def test_no_reservations_and_reservations_over_several_lines() -> None:
    assert read_reservations("No reservations in the system\n") == []
    said = (
        "ReservationName=train StartTime=1796000000 EndTime=1796003600 Duration=01:00:00\n"
        "   Nodes=n[1-2] NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=gpu Flags=SPEC_NODES\n"
        "   Users=ann Accounts=(null) State=INACTIVE\n\n"
        "ReservationName=open StartTime=Unknown EndTime=Unknown NodeCnt=1\n"
    )
    (one,) = read_reservations(said)
    assert (one.name, one.num_nodes, one.partition) == ("train", 2, "gpu")
    assert one.end_s - one.start_s == 3600


def test_a_job_as_scontrol_tells_it() -> None:
    said = (
        f"JobId=42 JobName=run-1 UserId=ann(7) JobState=PENDING Reason={SPACED} Dependency=(null) "
        "ExitCode=0:0 TimeLimit=00:30:00 SubmitTime=1796021740 StartTime=Unknown EndTime=Unknown "
        "NumNodes=4-4 ReqB:S:C:T=0:0:*:* Command=/home/ann/my job.sh\n"
    )
    (one,) = read_job("Banner\n" + said)
    assert (one.job_id, one.name, one.phase, one.reason) == ("42", "run-1", Phase.PENDING, SPACED)
    assert (one.nodes, one.limit_s, one.submitted_s) == (4, 1800, 1796021740)
    assert one.start_s is None and one.end_s is None and one.outcome == "unknown"
    assert read_job("slurm_load_jobs error: Invalid job id specified\n") == []


@pytest.mark.parametrize(
    ("state", "code", "outcome"),
    [
        ("COMPLETED", "0:0", "completed"),
        ("TIMEOUT", "0:15", "walltime"),
        ("DEADLINE", "0:0", "walltime"),
        ("CANCELLED by 1001", "0:15", "cancelled"),
        ("CANCELLED+", "0:0", "cancelled"),
        ("PREEMPTED", "0:0", "cancelled"),
        ("FAILED", "1:0", "failed"),
        ("FAILED", "75:0", "completed"),  # it left well before its walltime
        ("FAILED", "6:0", "failed"),
        ("NODE_FAIL", "75:0", "failed"),
        ("OUT_OF_MEMORY", "0:125", "failed"),
        ("RUNNING", "0:0", "unknown"),
        ("SOMETHING_NEW", "0:0", "unknown"),
    ],
)
def test_how_jobs_end(state: str, code: str, outcome: str) -> None:
    line = f"42|{state}|1796021740|1796021800|1796021860|{code}|2|00:01:00|run-1\n"
    (one,) = read_accounts("Banner | with | bars\n" + line)
    assert (one.job_id, one.name, one.outcome) == ("42", "run-1", outcome)
    assert (one.start_s, one.end_s, one.nodes, one.limit_s) == (1796021800, 1796021860, 2, 60)


def test_an_id_that_was_used_twice_is_told_twice() -> None:
    lines = (
        "42|COMPLETED|1700000000|1700000001|1700000002|0:0|1|00:01:00|other\n"
        "42|RUNNING|1796021740|1796021800|Unknown|0:0|1|00:01:00|run-1\n"
    )
    assert [(one.name, one.end_s) for one in read_accounts(lines)] == [
        ("other", 1700000002),
        ("run-1", None),
    ]


def test_exit_codes() -> None:
    assert (exit_code("0:0"), exit_code("75:0"), exit_code("0:15"), exit_code("")) == (
        0,
        75,
        None,
        None,
    )
