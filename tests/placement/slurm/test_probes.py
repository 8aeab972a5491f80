"""sbatch's words: every form of the estimate from 17.02 to 26.05, ids, errors, and what surrounds
them."""

from __future__ import annotations

import re

import pytest

from ops.placement.slurm.probes import Estimate, read_probe, read_submit
from ops.placement.slurm.troubles import Kind, Trouble, trouble
from tests.placement.slurm.recorded import Case, cases

AT = 1_795_961_711
PROBES = [case for case in cases() if "sbatch --test-only" in case.command]

OLD = "sbatch: Job 7 to start at {at} using 16 processors on n[1-2]"
MIDDLE = "sbatch: Job 7 to start at {at} using 16 processors on nodes n[1-2] in partition gpu"
NEW = "sbatch: Job 7 to start at {at} a using 16 processors on nodes n[1-2] in partition gpu"
NEW_CLUSTER = NEW.replace(" a using", " on cluster lumi a using")
_BY_FORM = {
    OLD: "17.02 17.11",
    MIDDLE: "18.08 19.05 20.02 20.11 21.08 22.05 23.02 23.11 24.05 24.11",
    NEW: "25.05 25.11 26.05",
    NEW_CLUSTER: "25.05-M 25.11-M 26.05-M",
}
FORMS = {v: form.format(at=AT) for form, versions in _BY_FORM.items() for v in versions.split()} | {
    "info": MIDDLE.format(at=AT).replace("sbatch:", "sbatch: info:"),
    "ISO": MIDDLE.format(at="2026-11-29T14:15:11"),
}


@pytest.mark.parametrize("version", FORMS)
def test_the_estimate_of_every_version(version: str) -> None:
    found = read_probe(0, "", FORMS[version] + "\n")
    assert isinstance(found, Estimate)
    assert (found.start_s, found.nodes) == (AT, "n[1-2]")
    assert found.partition == ("" if version.startswith("17") else "gpu")


@pytest.mark.parametrize("version", FORMS)
def test_banners_and_notices_around_it_change_nothing(version: str) -> None:
    banner = "*** Welcome. Your job 12 to start at dawn. ***\n\n"
    notice, preempts = "sbatch: You will be charged 3 SBU; limit 100", "sbatch:       Preempts: 3,4"
    err = f"{notice}\n{FORMS[version]}\n{preempts}\n"
    found = read_probe(0, banner, banner + err)
    assert isinstance(found, Estimate)
    assert (found.start_s, found.preempts) == (AT, "3,4")


@pytest.mark.parametrize("version", FORMS)
def test_an_unknown_start_is_unknown_in_every_version(version: str) -> None:
    said = re.sub(f"{AT}|2026-11-29T14:15:11", "Unknown", FORMS[version])
    found = read_probe(0, "", said)
    assert isinstance(found, Estimate) and found.start_s is None and found.nodes == "n[1-2]"


def test_silence_is_an_unknown_start_and_no_trouble() -> None:
    assert read_probe(0, "", "") == Estimate(None)  # sbatch -Q


@pytest.mark.parametrize(
    "case", [c for c in PROBES if c.code == 0 and "-Q" not in c.command], ids=str
)
def test_every_recorded_estimate_is_read(case: Case) -> None:
    found = read_probe(case.code, "", case.output)
    assert isinstance(found, Estimate) and found.nodes and found.partition
    epoch = re.search(r"start at (\d{4}-\S+T\S+) ", case.output)
    assert (found.start_s is not None) == bool(epoch)


@pytest.mark.parametrize("case", [c for c in PROBES if c.code], ids=str)
def test_every_recorded_refusal_is_a_trouble_with_its_words(case: Case) -> None:
    found = read_probe(case.code, "", case.output)
    assert isinstance(found, Trouble) and found.text
    assert not found.text.startswith("sbatch")
    kind, silent = RECORDED[next(words for words in RECORDED if words in case.output)]
    assert (found.kind, found.silent) == (kind, silent), found


# What each recorded refusal means: by placement.md and Slurm's documentation of the error.
RECORDED = {
    "Socket timed out": (Kind.TRANSIENT, True),
    "Unable to contact slurm controller": (Kind.TRANSIENT, True),
    "Problem talking to database": (Kind.TRANSIENT, False),
    "QOSMaxWallDurationPerJobLimit": (Kind.PERMANENT, False),
    "QOSMaxNodePerJobLimit": (Kind.PERMANENT, False),
    "QOSMaxSubmitJobPerUserLimit": (Kind.TRANSIENT, False),
    "Problem with submit to cluster": (Kind.PERMANENT, False),
    "Node count specification invalid": (Kind.PERMANENT, False),
    # also said where the nodes are drained: so it may be granted later
    "Requested node configuration is not available": (Kind.TRANSIENT, False),
    "Requested time limit is invalid": (Kind.PERMANENT, False),
    "Invalid feature specification": (Kind.PERMANENT, False),
    "Invalid partition name": (Kind.OURS, False),
    "Requested reservation is invalid": (Kind.OURS, False),
    "Invalid account or account/partition": (Kind.OURS, False),
    "Invalid qos specification": (Kind.OURS, False),
    "Invalid --time specification": (Kind.OURS, False),
    "No cluster 'nosuch' known": (Kind.OURS, False),
    "Unable to open file": (Kind.OURS, False),
    "does not look like a batch script": (Kind.OURS, False),
    "DOS line breaks": (Kind.OURS, False),
}

BATCH = "sbatch: error: Batch job submission failed: "
OTHERS = [
    ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "transient"),
    (BATCH + "Zero Bytes were transmitted or received", "transient"),
    (BATCH + "Resource temporarily unavailable", "transient"),
    (BATCH + "Requested partition configuration not available now", "transient"),
    (BATCH + "User's group not permitted to use this partition", "ours"),
    (BATCH + "Access/permission denied", "ours"),
    (BATCH + "Invalid generic resource (gres) specification", "ours"),
    ("sbatch: error: Memory specification can not be satisfied", "permanent"),
    ("sbatch: unrecognized option '--gpus-per-node=8'", "ours"),  # before 19.05
    ("allocation failure: More processors requested than permitted", "permanent"),
    ("sbatch: error: AssocMaxSubmitJobLimit", "transient"),
    ("what no version known here says", "transient"),
    ("", "transient"),
]


@pytest.mark.parametrize(("text", "kind"), OTHERS)
def test_errors_of_other_versions_and_centres(text: str, kind: str) -> None:
    assert trouble(text).kind == kind
    assert trouble(text).text


def test_an_error_is_shown_as_one_line_without_repeats() -> None:
    said = "sbatch: error: QOSMaxNodePerJobLimit\n" * 2 + "allocation failure: no\n"
    assert trouble(said).text == "QOSMaxNodePerJobLimit; allocation failure: no"


@pytest.mark.parametrize(
    "out",
    [
        "1234\n",
        "1234;lumi\n",
        "Submitted batch job 1234\n",
        "Submitted batch job 1234 on cluster lumi\n",
        "Welcome, user 77\nyou have 9 jobs\n1234\n",
        "1234\nThis centre is closed on 24 December\n",
        "sbatch: Submitted batch job 1234\n",
    ],
)
def test_the_id_of_a_submitted_job(out: str) -> None:
    assert read_submit(0, out, "sbatch: charged 3 SBU\n") == "1234"


def test_a_submission_without_an_id_may_have_happened() -> None:
    found = read_submit(0, "hello\n", "")
    assert isinstance(found, Trouble) and found.silent


@pytest.mark.parametrize("case", [c for c in cases() if c.command.startswith("sbatch -o")], ids=str)
def test_every_recorded_submission_is_read(case: Case) -> None:
    found = read_submit(case.code, case.output, "")
    if case.code:
        assert isinstance(found, Trouble) and found.kind == Kind.TRANSIENT and not found.silent
    else:
        assert found == case.output.split()[-1]
