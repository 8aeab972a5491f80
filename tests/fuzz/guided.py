"""Fuzz one target by libFuzzer, guided by the code that inputs reach: for `make soak`, or by hand.

    python -m tests.fuzz.guided TARGET NUM [SEED]

Ends with 0 after NUM inputs; an input that crashes the reader, or has it take more memory than the
bound, ends it otherwise, and is kept in the working directory as libFuzzer names it. Corpus and
scratch files stand there too.
"""

from __future__ import annotations

import sys
from pathlib import Path

MAX_MIB = 512  # of one allocation
MAX_INPUT_BYTES = 4096
# rooms whose branches guide it; the compiled loops of the others (numba) are not to be changed
GUIDING = ["eventlog", "leases", "broker", "ops"]


def main() -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    name, num, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3] if sys.argv[3:] else "1"
    with atheris.instrument_imports(include=GUIDING):
        from tests.fuzz.targets import BY_NAME
    target = BY_NAME[name]
    folder = Path(
        f"fuzz-{name}"
    ).resolve()  # libFuzzer ends the process: nothing tidies up after it
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, sound in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(sound)
    options = [f"-runs={num}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-verbosity=0"]
    limits = [f"-malloc_limit_mb={MAX_MIB}", "-rss_limit_mb=4096", "-timeout=20"]
    atheris.Setup(
        [sys.argv[0], *options, *limits, str(corpus)],
        lambda data: target.feed(data, folder),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
