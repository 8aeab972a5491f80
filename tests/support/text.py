"""A folder of small texts to train on, always the same."""

from __future__ import annotations

import random
from pathlib import Path

TEXT = """a reef keeps its own book every wave is written down and nothing is lost when the tide
turns some islands sleep some wake and the lagoon grows by whoever comes to build it"""


def write_text(folder: Path, num_files: int = 60, words_per_file: int = 220) -> Path:
    """Files of sentences of random words, from a fixed seed."""
    words = TEXT.split()
    generator = random.Random(11)
    folder.mkdir(parents=True)
    for number in range(num_files):
        text = " ".join(generator.choice(words) for _ in range(words_per_file))
        (folder / f"text-{number:03}.txt").write_text(text + "\n", encoding="utf-8")
    return folder
