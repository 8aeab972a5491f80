"""What the study of quality trains, in the order of its questions; docs/experiments.md has answers.

One lever at a time is screened in about 700 sequential steps of one seed; the settings of the
report are then trained for 2,100, with paired seeds. A block has three steps of a site, so a round
of H = 20 has 21, and one of H = 100 has 105: the numbers of rounds come out even.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ops.bench.quality_runs import Setting

NUM_SITES = 3
SEEDS = (1, 2, 3)
LONG = 100_800  # sequences: 2,100 steps of three sites in batches of 16, 55 % of the data
QUICK = 5_040  # one round at H = 100

GAPS = {"H=20": 0.02, "H=100": 0.05}  # nats, what is aimed at

BASELINE = Setting(LONG, 0, 0, 48, "muon", 0.02, adamw_share=2.5, hidden=64, block=48)
_SITES = Setting(LONG, NUM_SITES, 21, 16, "muon", 0.02, adamw_share=3.0, hidden=64, block=48)
BEST = {"H=20": _SITES, "H=100": replace(_SITES, h=105)}


def _first() -> Iterator[Setting]:
    """800 steps, the baseline with batches of 20 in a fifth more; blocks of five steps."""
    for lr in (0.008, 0.005):
        yield Setting(19_200, 0, 0, 20, "adamw", lr)
    sites = Setting(19_200, NUM_SITES, 20, 8, "muon", 0.02, hidden=64)
    yield sites
    yield Setting(19_200, 0, 0, 20, "muon", 0.02, hidden=64)
    yield replace(sites, outer_lr=1.5)
    yield replace(sites, lr=0.03)


def _levers() -> Iterator[Setting]:
    """693 steps in batches of 8, the baseline's of 24; a round of H = 20 has 21 steps."""
    base, sites = (
        replace(one, sequences=16_632, batch=batch, block=24, h=h, adamw_share=1.0)
        for one, batch, h in ((BASELINE, 24, 0), (_SITES, 8, 20))
    )
    for share in (0.3, 3.0):  # of the rate, for the embedding
        yield replace(sites, adamw_share=share)
    yield replace(sites, muon_momentum=0.98, beta1=0.95, beta2=0.99)
    yield base
    yield sites
    yield replace(base, adamw_share=2.5)
    sites = replace(sites, adamw_share=3.0)
    yield replace(sites, h=3)
    yield replace(sites, muon_momentum=0.9)
    yield replace(sites, outer_lr=0.8, momentum=0.5)


def _batches() -> Iterator[Setting]:
    """3.2 million tokens in 2,100 steps, or in 693 of three times the batch."""
    base, sites = (replace(one, sequences=50_400, block=24) for one in (BASELINE, _SITES))
    yield replace(base, batch=24)
    for h in (21, 105):
        yield replace(sites, batch=8, h=h)
    yield replace(sites, sequences=49_896, batch=24, block=72, h=20)
    yield replace(base, sequences=49_896, batch=72, block=72)


def _larger() -> Iterator[Setting]:
    """2,100 steps of the largest batches that the data last for."""
    for one, batch in ((_SITES, 28), (BASELINE, 84)):
        yield replace(one, sequences=176_400, batch=batch, block=84)


STUDY = tuple((one, SEEDS[0]) for part in (_first, _levers, _batches, _larger) for one in part())
FINAL = tuple((one, seed) for seed in SEEDS for one in (BASELINE, *BEST.values()))
