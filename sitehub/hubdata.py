"""Sources that the `datasets` library reads: the Hugging Face hub, streamed, and saved folders.

A dataset of the hub is read shard by shard as it streams, nothing of it is stored: a unit of work
is one of its files. Offline mode (HF_HUB_OFFLINE, HF_DATASETS_OFFLINE) is the library's own and
holds for us: then what is cached here is read, or the name is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sitehub.documents import DataInvalid, Tally
from sitehub.rowfiles import Unit, column_values, needed

_BATCH_ROWS = 256
_FIRST_ROWS = 1000  # of a saved dataset: their mean size is taken for every row's


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset by name, such as allenai/c4 with its configuration en. A folder laid out as the
    hub's repositories are is a name too. `revision`: a commit, which makes it the same for ever."""

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    text_field: str = "text"

    @property
    def place(self) -> Path | None:
        path = Path(self.name)
        return path if path.is_dir() else None

    @property
    def label(self) -> dict[str, Any]:
        """What the manifest says; of a local folder its last name."""
        return {
            "kind": "hub",
            "name": self.place.name if self.place else self.name,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
            "field": self.text_field,
        }

    def num_bytes(self) -> int:
        """Unknown before it is read."""
        return 0

    def units(self, source: int, unit_bytes: int) -> Iterator[Unit]:
        """Its shards, whatever their size."""
        found = _streamed(self)
        num_shards = max(1, int(found.num_shards))
        for shard in range(num_shards):
            yield Shard(source, self, shard, num_shards)


@dataclass(frozen=True, slots=True)
class Shard:
    """One of a streamed dataset's shards."""

    source: int
    dataset: HubDataset
    shard: int
    num_shards: int
    weight: int = 1

    def values(self, tally: Tally) -> Iterator[Any]:
        found, name = _streamed(self.dataset), self.dataset.text_field
        with _told(self.dataset.name):
            names = found.column_names
            if names is not None and name not in names:
                raise _no_column(self.dataset.name, name, names)
            part = found.shard(self.num_shards, self.shard) if self.num_shards > 1 else found
            for row in part:
                yield row.get(name)


@dataclass(frozen=True, slots=True)
class SavedDataset:
    """A folder that `save_to_disk` wrote; `split` of a folder of several splits."""

    folder: str
    split: str | None = None
    text_field: str = "text"

    @property
    def place(self) -> Path | None:
        return Path(self.folder)

    @property
    def label(self) -> dict[str, Any]:
        return {"kind": "saved", "split": self.split, "field": self.text_field}

    def num_bytes(self) -> int:
        """Of the tables it is made of."""
        return int(_saved(self).data.nbytes)

    def units(self, source: int, unit_bytes: int) -> Iterator[Unit]:
        """Runs of rows of about a unit's size, by the size of the first rows."""
        found = _saved(self)
        if self.text_field not in found.column_names:
            raise _no_column(self.folder, self.text_field, found.column_names)
        texts = found[:_FIRST_ROWS][self.text_field]
        row_bytes = sum(len(text) for text in texts if isinstance(text, str)) // max(1, len(texts))
        step = max(1, unit_bytes // max(1, row_bytes))
        for first in range(0, len(found), step):
            end = min(first + step, len(found))
            weight = (end - first) * max(1, row_bytes)
            yield Rows(source, self, str(found._fingerprint), first, end, weight)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a saved dataset. `fingerprint` is its own, which changes with it."""

    source: int
    dataset: SavedDataset
    fingerprint: str
    first: int
    end: int
    weight: int

    def values(self, tally: Tally) -> Iterator[Any]:
        found = _saved(self.dataset).with_format("arrow")
        with _told(self.dataset.folder):
            for start in range(self.first, self.end, _BATCH_ROWS):
                rows = found[start : min(start + _BATCH_ROWS, self.end)]
                for chunk in rows.column(self.dataset.text_field).chunks:
                    yield from column_values(chunk, tally)


def is_saved(path: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


@lru_cache(maxsize=8)
def _streamed(spec: HubDataset) -> Any:
    """The dataset, streaming. Raises DataInvalid."""
    datasets = needed("datasets", spec.name)
    with _told(spec.name):
        return datasets.load_dataset(
            spec.name, spec.config, split=spec.split, revision=spec.revision, streaming=True
        )


@lru_cache(maxsize=8)
def _saved(spec: SavedDataset) -> Any:
    """The dataset, mapped. Raises DataInvalid."""
    datasets = needed("datasets", spec.folder)
    with _told(spec.folder):
        found = datasets.load_from_disk(spec.folder)
    if not isinstance(found, datasets.DatasetDict):
        if spec.split is not None and str(found.split) != spec.split:
            raise DataInvalid(f"{spec.folder}: holds one split, {found.split}: leave out --split")
        return found
    if spec.split not in found:
        raise DataInvalid(
            f"{spec.folder}: holds the splits {', '.join(found)}: name one of them (--split)"
        )
    return found[spec.split]


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What goes wrong in the library, in one line. It, its file systems and its downloads raise
    errors of many families. Raises DataInvalid."""
    try:
        yield
    except DataInvalid:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataInvalid(f"{name}: the dataset cannot be read: {why}") from error


def _no_column(name: str, field: str, names: list[str]) -> DataInvalid:
    return DataInvalid(
        f"{name}: has no column {field!r} but {', '.join(map(repr, names))}: name the one that "
        "holds the text (--field)"
    )
