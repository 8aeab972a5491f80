"""`atoll bench quality`: what training at three sites costs in held-out loss, beside one machine.

A gap is the loss of three sites minus that of the centralised baseline, at equal tokens, from equal
parameters, on the same blocks: rows of one seed are paired. The baseline has the tokens of three
sites in about as many sequential steps, and the best rate found for it. `--study` trains what is
planned and not yet recorded, for as long as it is let; without it one pair of the best setting is
trained anew, and what was recorded is shown beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from eventlog.errors import AtollError
from ops.bench.codec_quality import interval
from ops.bench.measure import Measure, Progress, Report, at_most, measured
from ops.bench.quality_plan import BASELINE, BEST, FINAL, GAPS, NUM_SITES, QUICK, SEEDS, STUDY
from ops.bench.quality_runs import Row, Setting, build, play

RECORDED = Path(__file__).parents[2] / "docs" / "results" / "quality.jsonl"

Job = tuple[Setting, int]  # and its seed


class StudyInvalid(AtollError):
    """A study that cannot be made, or recorded; the text says why."""


def run(quick: bool, progress: Progress, sites: int = NUM_SITES, study: bool = False) -> Report:
    """The report on the best setting; with `study`, after what is still to be trained of the plan.
    `quick`: of little text, in few steps. Raises StudyInvalid."""
    if sites != NUM_SITES:
        raise StudyInvalid(f"--sites {sites}: the study's settings are for {NUM_SITES} sites")
    if study:
        _study(progress)
    recorded, best = [] if quick else read(RECORDED), (BASELINE, *BEST.values())
    best = tuple(replace(one, sequences=QUICK) for one in best) if quick else best
    jobs = [(one, SEEDS[0]) for one in best]
    with tempfile.TemporaryDirectory(prefix="atoll-quality-") as name:
        data = _built(Path(name) / "data", 16 if quick else 1, progress)
        fresh = list(played(jobs, data, progress, _compiles() and not quick))
    return report(fresh, recorded)


def report(fresh: Sequence[Row], recorded: Sequence[Row]) -> Report:
    """The gaps of what was just trained; recorded ones are told in the notes, and labelled so."""
    base = next(row for row in fresh if not row.setting.sites)
    measures: list[Measure] = []
    notes = [f"baseline {base.loss:.4f} nats: {words(base.setting)}, seed {base.seed}"]
    for what, setting in BEST.items():
        own = next(row for row in fresh if row.setting.h == setting.h)
        aim = at_most(GAPS[what])
        measures.append(measured(what, [own.loss - base.loss], "nats", target=aim))
        notes.append(f"{what}: {own.loss:.4f} nats: {words(own.setting)}")
        if gaps := paired(recorded, setting, BASELINE):
            notes.append(f"{what}, recorded earlier: {interval(gaps)}")
    notes.append(f"{base.tokens:,} tokens each, none trained twice; gaps are to the baseline")
    return Report("quality", tuple(measures), 1, tuple(notes))


def paired(rows: Iterable[Row], setting: Setting, base: Setting) -> list[float]:
    """Differences of loss, by seed, where both are recorded on the same data."""
    losses = {(row.setting, row.seed, row.data): row.loss for row in rows}
    return [
        loss - losses[base, seed, data]
        for (own, seed, data), loss in losses.items()
        if own == setting and (base, seed, data) in losses
    ]


def words(one: Setting) -> str:
    """A setting for people."""
    inner = f"{one.optimizer} at {one.lr:g}, batches of {one.batch} sequences, {one.steps:,} steps"
    inner += "".join(
        f", {name} {getattr(one, name):g}"
        for name in ("adamw_share", "beta1", "beta2", "muon_momentum", "weight_decay")
        if getattr(one, name) != Setting.__dataclass_fields__[name].default
    )
    if not one.sites:
        return inner
    reset = ", moments reset" if one.on_version == "reset" else ""
    late = f", {one.delay_blocks} blocks late" if one.delay_blocks else ""
    falls = f", falling to {one.outer_final_lr:g} of it" if one.outer_final_lr != 1 else ""
    outer = f"outer {one.outer_lr:g} and {one.momentum:g}{falls}"
    return f"{one.sites} sites, H = {one.h}, {inner}{reset}, {outer}, {one.codec}{late}"


def played(
    jobs: Sequence[Job], data: Path, progress: Progress, compiled: bool = False
) -> Iterator[Row]:
    """Rows as they end, several processes at once; no more are begun than can be at work."""
    context, num = multiprocessing.get_context("spawn"), os.cpu_count() or 1
    rest, running = iter(jobs), set[Future[Row]]()
    progress("trainings", 0, len(jobs))
    with ProcessPoolExecutor(num, mp_context=context) as pool:
        first = [job for _, job in zip(range(num), rest, strict=False)]
        running |= {pool.submit(play, *job, data, compiled) for job in first}
        for count in range(1, len(jobs) + 1):
            done, running = wait(running, return_when=FIRST_COMPLETED)
            one, *others = done
            running |= set(others)
            if job := next(rest, None):
                running.add(pool.submit(play, *job, data, compiled))
            yield one.result()
            progress("trainings", count, len(jobs))


def read(path: Path) -> list[Row]:
    """The recorded rows, none where there is no file. Raises StudyInvalid."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(Row.of(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise StudyInvalid(f"{path}, line {number}: no row of a study: {error}") from error
    return rows


def missing(plan: Iterable[Job], recorded: Iterable[Row], data: str) -> list[Job]:
    """What of a plan is not recorded on this data, in order, each once."""
    have = {(row.setting, row.seed) for row in recorded if row.data == data}
    return [job for job in dict.fromkeys(plan) if job not in have]


def _study(progress: Progress) -> None:
    """Train and record what is missing. May be ended at any time, and begun again."""
    from sitehub.corpus import Corpus

    if not RECORDED.parent.is_dir():
        raise StudyInvalid(f"{RECORDED.parent} is missing: the study runs in a checkout of atoll")
    with tempfile.TemporaryDirectory(prefix="atoll-quality-") as name:
        data = _built(Path(name) / "data", 1, progress)
        digest = Corpus.open(data).manifest_digest
        jobs = missing((*STUDY, *FINAL), read(RECORDED), digest)
        for row in played(jobs, data, progress, _compiles()):
            with RECORDED.open("a") as file:
                file.write(json.dumps(row.as_json(), sort_keys=True) + "\n")


def _compiles() -> bool:
    """Whether torch.compile can: a training then takes a fifth less time."""
    return shutil.which("g++") is not None


def _built(folder: Path, subset: int, progress: Progress) -> Path:
    progress("building the data", 0, 1)
    build(folder, subset)
    return folder
