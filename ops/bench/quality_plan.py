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
BLOCK = 24  # sequences: three steps of a site, one of the baseline
FIRST, SCREEN, LONG = 19_200, 16_632, 50_400  # sequences: 800, 693 and 2,100 steps of three sites
QUICK = 2_520  # one round at H = 100

GAPS = {"H=20": 0.02, "H=100": 0.05}  # nats, what is aimed at

BASELINE = Setting(LONG, 0, 0, 24, "muon", 0.02, adamw_share=2.5, hidden=64, block=BLOCK)
_SITES = Setting(LONG, NUM_SITES, 21, 8, "muon", 0.02, adamw_share=3.0, hidden=64, block=BLOCK)
BEST = {"H=20": _SITES, "H=100": replace(_SITES, h=105)}


def _first() -> Iterator[Setting]:
    """Before blocks had three steps; the baseline's batch is 20, in a fifth more steps."""
    for lr in (0.008, 0.005):
        yield Setting(FIRST, 0, 0, 20, "adamw", lr)
    sites = Setting(FIRST, NUM_SITES, 20, 8, "muon", 0.02, hidden=64)
    yield sites
    yield Setting(FIRST, 0, 0, 20, "muon", 0.02, hidden=64)
    yield replace(sites, outer_lr=1.5)
    yield replace(sites, lr=0.03)


def _screened() -> Iterator[Setting]:
    base, sites = replace(BASELINE, sequences=SCREEN), replace(_SITES, sequences=SCREEN, h=20)
    for share in (0.3, 3.0):  # of the rate, for the embedding
        yield replace(sites, adamw_share=share)
    yield replace(sites, muon_momentum=0.98, beta1=0.95, beta2=0.99)  # longer means at the sites
    yield base
    yield sites


STUDY = tuple((one, SEEDS[0]) for part in (_first, _screened) for one in part())
FINAL = tuple((one, seed) for seed in SEEDS for one in (BASELINE, *BEST.values()))
