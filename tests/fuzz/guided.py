"""Fuzz one target by libFuzzer, guided by the code that inputs reach: for `make soak`, or by hand.

    python -m tests.fuzz.guided TARGET NUM [bytes|odd] [SEED]

`bytes`: what libFuzzer writes is the input. `odd`: it decides what the target's own strategy draws,
so that inputs are well-formed, and mean something strange.

Ends with 0 after NUM inputs; an input that crashes the reader, or has it take more memory than the
bound, ends it otherwise, and is kept in the working directory as libFuzzer names it. Corpus and
scratch files stand there too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings

MAX_MIB = 512  # of one allocation
MAX_INPUT_BYTES = 4096
# rooms whose branches guide it; the compiled loops of the others (numba) are not to be changed
GUIDING = ["eventlog", "leases", "broker", "ops"]


def main() -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    name, num, way, seed = (*sys.argv[1:], *("bytes", "1")[len(sys.argv) - 3 :])
    with atheris.instrument_imports(include=GUIDING):
        from tests.fuzz.targets import BY_NAME
    target = BY_NAME[name]
    # libFuzzer ends the process: nothing tidies up after it
    folder = Path(f"fuzz-{name}-{way}").resolve()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    draws = [Random(number).randbytes(2048) for number in range(50)]  # of none nothing is drawn
    for number, sound in enumerate(target.seeds if way == "bytes" else draws):
        (corpus / str(number)).write_bytes(sound)

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=target.odd)
    def drawn(data: bytes) -> None:
        target.feed(data, folder)

    options = [f"-runs={num}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-verbosity=0"]
    limits = [f"-malloc_limit_mb={MAX_MIB}", "-rss_limit_mb=4096", "-timeout=20"]
    atheris.Setup(
        [sys.argv[0], *options, *limits, str(corpus)],
        drawn.hypothesis.fuzz_one_input if way == "odd" else lambda data: target.feed(data, folder),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
