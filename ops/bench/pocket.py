"""A whole run in one process: real trainers' replicas, real merges, neither broker nor clock.

What a broker and its delays add is not quality: with the same blocks in the same deltas every
version has the same bytes. So a study of quality plays rounds in turn, site by site. Overlap is
played as the anchor rule has it: a site trains so many blocks of its next delta before it folds
the new version in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from eventlog.config import RunConfig
from leases.blocks import BlockIndex, weights
from leases.progress import share_done, share_merged
from outer.merge import take_step
from outer.schedule import rule_of
from outer.versions import OuterState, save_parameters
from sitehub.corpus import Corpus
from sitehub.founding import data_shape
from sitehub.model import build_model, parameters_of
from sitehub.replica import Replica
from sitehub.training import InnerLoop


@dataclass(slots=True)
class Site:
    """One site: its replica, and the tokens it has trained since its last delta."""

    name: str
    replica: Replica
    blocks: list[int] = field(default_factory=list)  # of the delta that it trains for


@dataclass(frozen=True, slots=True)
class Played:
    """What a run came to. delta_bytes: what one site sends a round; update_bytes: what it gets."""

    loss: float
    tokens: int
    rounds: int
    delta_bytes: int
    update_bytes: int


class PocketRun:
    """`config.target.rounds` rounds of `num_sites` equal sites, `config.blocks_per_round` blocks
    each. `delay_blocks`: trained after a delta is cut and before the version that it goes into is
    folded in; 0: overlap none."""

    def __init__(
        self,
        corpus: Corpus,
        config: RunConfig,
        folder: Path,
        *,
        num_sites: int = 3,
        delay_blocks: int = 0,
    ) -> None:
        if not 0 <= delay_blocks <= config.blocks_per_round:
            raise ValueError(f"delay_blocks = {delay_blocks}: a round has fewer blocks")
        self._corpus, self._config, self._folder = corpus, config, folder
        self._delay = delay_blocks
        self._index = BlockIndex(config.seed, data_shape(config, corpus))
        self._order = self._blocks()
        initial = parameters_of(self._model())
        self._state = OuterState.initial(initial)
        self._merged_tokens = [0]  # by version
        save_parameters(initial, folder / "initial")
        names = [f"site-{number}" for number in range(num_sites)]
        self._sites = [Site(name, self._replica(name)) for name in names]

    def play(self, on_round: Callable[[int], None] = lambda _: None) -> Played:
        """All rounds; the held-out loss of the last version."""
        delta_bytes = update_bytes = 0
        num_rounds = self._config.target.rounds or 0
        for number in range(1, num_rounds + 1):
            deltas = [self._delta(site, number) for site in self._sites]
            delta_bytes = max(path.stat().st_size for path, _ in deltas)
            update = self._merge(deltas)
            update_bytes = update.stat().st_size
            self._hand_out(update, last=number == num_rounds)
            for path in (update, *(path for path, _ in deltas)):
                path.unlink()
            on_round(number)
        found = self._sites[0].replica.evaluate(None)
        return Played(found.loss, self._merged_tokens[-1], num_rounds, delta_bytes, update_bytes)

    def _blocks(self) -> Iterator[int]:
        epoch = 0
        while True:
            yield from (self._index.at(epoch, place) for place in range(self._index.num_blocks))
            epoch += 1

    def _model(self) -> PreTrainedModel:
        corpus, config = self._corpus, self._config
        return build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)

    def _replica(self, name: str) -> Replica:
        config, model = self._config, self._model()
        loop = InnerLoop(model, self._corpus, config.inner, config.data.block_sequences)
        replica = Replica(
            model, self._corpus, config.outer, loop, self._folder / f"residual-{name}"
        )
        replica.load(0, self._folder / "initial", "initial")
        return replica

    def _train(self, site: Site, num_blocks: int) -> None:
        for _ in range(num_blocks):
            block = next(self._order)
            own = sum(map(self._index.tokens, site.blocks))
            site.replica.train(block, self._progress(site, own, block), lambda _: None)
            site.blocks.append(block)

    def _progress(self, site: Site, own: int, block: int) -> tuple[float, float]:
        version = site.replica.version
        merged, more = self._merged_tokens[version], self._index.tokens(block)
        begin, end = (
            share_done(self._config, self._index, version, merged, tokens)
            for tokens in (own, own + more)
        )
        return begin, end

    def _delta(self, site: Site, number: int) -> tuple[Path, int]:
        """Train what is left of the quota, and cut; the delta's file and tokens."""
        self._train(site, self._config.blocks_per_round - len(site.blocks))
        path = self._folder / f"{site.name}-{number}"
        codec = self._config.outer.delta_codec
        site.replica.encode(path.name, site.replica.cut(), path, codec)
        tokens = sum(map(self._index.tokens, site.blocks))
        site.blocks = []
        return path, tokens

    def _merge(self, deltas: Sequence[tuple[Path, int]]) -> Path:
        outer, update = self._config.outer, self._folder / "update"
        tokens = [count for _, count in deltas]
        self._merged_tokens.append(self._merged_tokens[-1] + sum(tokens))
        self._state, _ = take_step(
            self._state,
            [(path, weight) for (path, _), weight in zip(deltas, weights(tokens), strict=True)],
            rule=rule_of(outer, self._progress_merged()),
            codec=outer.update_codec,
            update_path=update,
        )
        for site, (path, _) in zip(self._sites, deltas, strict=True):
            if path.name in site.replica.feedback.pending:
                site.replica.settle(path.name, merged=True)
        return update

    def _progress_merged(self) -> float:
        version = len(self._merged_tokens) - 1
        return share_merged(self._config, self._index, version, self._merged_tokens[-1])

    def _hand_out(self, update: Path, *, last: bool) -> None:
        for site in self._sites:
            if not last:
                self._train(site, self._delay)
            site.replica.step(self._state.version, update, self._progress_merged())
            site.replica.fold(self._state.version)
