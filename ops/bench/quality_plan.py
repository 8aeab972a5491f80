"""What the study of quality trains, in the order of its questions; docs/experiments.md has answers.

Rows are screened in 800 sequential steps of one seed; what is best is then trained for 2,000 and
more, with paired seeds. Rates are those of a peak that falls to zero by a cosine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ops.bench.quality_runs import Setting

NUM_SITES = 3
SEEDS = (1, 2, 3)
SCREEN, LONG = 19_200, 48_000  # sequences: 800 and 2,000 steps of three sites in batches of 8
QUICK = 2_400  # one round at H = 100

GAPS = {"H=20": 0.02, "H=100": 0.05}  # nats, what is aimed at

BASELINE = Setting(LONG, 0, 0, 20, "muon", 0.014)
_SITES = Setting(LONG, NUM_SITES, 20, 8, "muon", 0.014)
BEST = {"H=20": _SITES, "H=100": replace(_SITES, h=100)}


def _screened() -> Iterator[Setting]:
    base, sites = replace(BASELINE, sequences=SCREEN), replace(_SITES, sequences=SCREEN)
    for lr in (0.005, 0.008, 0.012):  # the baseline's best rate, of either optimizer
        yield replace(base, optimizer="adamw", lr=lr)
    for lr in (0.01, 0.014, 0.02, 0.03):
        yield replace(base, lr=lr)
    for lr in (0.003, 0.006, 0.012):  # sites that average
        yield replace(sites, optimizer="adamw", lr=lr)
    for lr in (0.01, 0.014, 0.02, 0.03):
        yield replace(sites, lr=lr)
    for outer in ((0.7, 0.5), (0.7, 0.7), (0.7, 0.9), (1.0, 0.3), (1.0, 0.5)):
        yield replace(sites, outer_lr=outer[0], momentum=outer[1])
    for h in (5, 10, 50, 100):
        yield replace(sites, h=h)
    yield replace(sites, batch=4, h=40, lr=0.01)  # smaller batches, as many tokens a round
    yield replace(sites, on_version="reset")
    yield replace(sites, delay_blocks=1)
    yield replace(sites, codec="4-bit")


STUDY = tuple((one, SEEDS[0]) for one in _screened())


def _final() -> Iterator[tuple[Setting, int]]:
    adamw = replace(BASELINE, optimizer="adamw", lr=0.008)
    for seed in SEEDS:
        for one in (BASELINE, *BEST.values(), replace(_SITES, h=50), adamw):
            yield one, seed


FINAL = tuple(_final())
