"""The same model trained centralised: the same blocks in the same order, with one optimizer.

What a run of many sites loses against one machine is told only beside this. It is the sites' own
inner loop (`sitehub.training`), from the run's own initial parameters, over the order of the run's
blocks, for as many tokens; the batch and the rate are its own. Nothing is exchanged, and no outer
step is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from eventlog.codec import content_digest
from eventlog.config import RunConfig
from eventlog.errors import AtollError
from eventlog.inner import Inner
from leases.blocks import BlockIndex
from leases.progress import goal
from outer.digests import digest
from sitehub import machine
from sitehub.corpus import Corpus
from sitehub.evaluate import evaluate
from sitehub.founding import data_shape
from sitehub.model import load_into, num_parameters, parameters_of
from sitehub.training import InnerLoop

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KEY, _PARAMETERS, _OPTIMIZER = "atoll baseline 1", "parameters", "optimizer"
MAX_CURVE = 1000  # points of the training curve that are kept


class BaselineInvalid(AtollError):
    """A baseline that cannot be trained, or taken up where it was left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained. `why`: how each value that was not given came about."""

    tokens: int
    batch_sequences: int
    lr: float
    why: dict[str, str]


def plan(config: RunConfig, corpus: Corpus, tokens: int | None = None) -> Plan:
    """The baseline of a configuration. `tokens`: in place of those of its target. Raises
    BaselineInvalid where nobody says for how many tokens.

    A rate for another batch than the site's goes with the root of the batch, as Adam's noise asks
    for (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms",
    arXiv:2205.10287).
    """
    inner, own, why = config.inner, config.baseline, {}
    batch = own.batch_sequences or inner.batch_sequences
    if own.batch_sequences is None:
        why["batch_sequences"] = (
            "that of one site (inner.batch_sequences): as many sequential steps as the run has "
            "tokens for; [baseline] batch_sequences gives another"
        )
    lr = own.lr
    if lr is None:
        ratio = batch / inner.batch_sequences
        lr = inner.lr * math.sqrt(ratio)
        why["lr"] = "inner.lr, for the batch is a site's"
        if ratio != 1:
            why["lr"] = f"inner.lr times the root of {ratio:g}, by which the batch is larger"
        why["lr"] += "; [baseline] lr gives another: each side is to have its own best"
    aim = tokens or goal(config, BlockIndex(config.seed, data_shape(config, corpus))).tokens
    if aim is None:
        raise BaselineInvalid(
            "the target is in rounds, whose tokens depend on how many sites there are: give "
            "--tokens, such as those that the run has merged (atoll run show RUN)"
        )
    return Plan(aim, batch, lr, why)


@dataclass(slots=True)
class Trained:
    """How far a baseline is. `curve`: (tokens, mean training loss since the point before)."""

    position: int = 0  # blocks trained, in the order of the run
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    num_skipped: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)


class Baseline:
    """One training, to be taken up again from the newest checkpoint in `folder`."""

    def __init__(
        self, config: RunConfig, model: PreTrainedModel, corpus: Corpus, wanted: Plan, folder: Path
    ) -> None:
        """`config` and `model` as `sitehub.founding.start` gives them.
        Raises BaselineInvalid where the folder holds another baseline."""
        self.done = Trained()
        self.resumed = False
        self._config, self._corpus, self._plan = config, corpus, wanted
        torch.nn.Module.to(model, machine.pick_device())
        self._model, self._path = model, folder / "checkpoint.safetensors"
        self._index = BlockIndex(config.seed, data_shape(config, corpus))
        block = config.data.block_sequences
        self._loop = InnerLoop(model, corpus, inner_of(config.inner, wanted), block)
        self._settings = self._digest()
        folder.mkdir(parents=True, exist_ok=True)
        self._take_up()

    def train(self, on_block: Callable[[Trained], bool]) -> bool:
        """Train to the end; True. Where `on_block`, called after each block, returns False, a
        checkpoint is written and the training ends there: False. Raises DataInvalid."""
        total, done = self._plan.tokens, self.done
        for block in self._rest():
            if done.tokens >= total:
                break
            more = self._index.tokens(block)
            ends = (done.tokens / total, min(1.0, (done.tokens + more) / total))
            result = self._loop.train_block(block, ends, lambda _: None)
            done.position += 1
            done.tokens += result.tokens
            done.steps += result.steps
            done.seconds += result.seconds
            done.num_skipped += result.num_skipped
            done.curve.append((done.tokens, result.loss))
            if len(done.curve) > MAX_CURVE:
                done.curve = _thinned(done.curve)
            if not on_block(done):
                self.save()
                return False
        return True

    def save(self) -> None:
        """Write where the training is; the file appears whole."""
        tensors = {f"{_PARAMETERS}/{k}": v.cpu() for k, v in parameters_of(self._model).items()}
        state = self._loop.optimizer.whole_state()
        tensors |= {f"{_OPTIMIZER}/{key}": value for key, value in state.items()}
        said = json.dumps({"settings": self._settings, "done": asdict(self.done)}, sort_keys=True)
        part = self._path.with_name(self._path.name + ".part")
        save_file(tensors, part, {_KEY: said})
        part.replace(self._path)

    def result(self, max_tokens: int | None) -> dict[str, Any]:
        """The documented object (docs/steering.md): how good it is, and everything it is made of.
        `max_tokens`: of held-out text."""
        found, done, plan_ = evaluate(self._model, self._corpus, max_tokens), self.done, self._plan
        return {
            "kind": "baseline",
            "name": self._config.name,
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "num_tokens": found.num_tokens,
            "tokens": done.tokens,
            "steps": done.steps,
            "skipped_steps": done.num_skipped,
            "seconds": done.seconds,
            "tokens_per_s": done.tokens / done.seconds if done.seconds else 0.0,
            "batch_sequences": plan_.batch_sequences,
            "lr": plan_.lr,
            "derived": plan_.why,
            "inner": inner_of(self._config.inner, plan_).model_dump(mode="json"),
            "seed": self._config.seed,
            "num_parameters": num_parameters(self._model),
            "manifest_digest": self._corpus.manifest_digest,
            "model": self._config.model,
            "parameters_digest": digest({k: v.cpu() for k, v in self._named()}),
            "device": str(next(self._model.parameters()).device),
            "curve": done.curve,
        }

    def _named(self) -> Iterator[tuple[str, Any]]:
        yield from parameters_of(self._model).items()

    def _rest(self) -> Iterator[int]:
        """Blocks in the order in which a run grants them, from where this one is."""
        position, num = self.done.position, self._index.num_blocks
        while True:
            yield self._index.at(*divmod(position, num))
            position += 1

    def _digest(self) -> str:
        """Of all that a checkpoint must agree with."""
        inner = inner_of(self._config.inner, self._plan)
        return content_digest(
            {
                "inner": inner.model_dump(mode="json"),
                "model": self._config.model,
                "seed": self._config.seed,
                "block_sequences": self._config.data.block_sequences,
                "manifest_digest": self._corpus.manifest_digest,
                "tokens": self._plan.tokens,
            }
        )

    def _take_up(self) -> None:
        if not self._path.exists():
            return
        try:
            with safe_open(self._path, "pt") as file:
                said = json.loads((file.metadata() or {}).get(_KEY, "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise BaselineInvalid(f"{self._path}: cannot be read: {error}; remove it") from error
        if said.get("settings") != self._settings:
            raise BaselineInvalid(
                f"{self._path} is of another baseline (other settings, data or tokens): give "
                "another folder with --out, or remove it"
            )
        load_into(self._model, _part(tensors, _PARAMETERS))
        state = _part(tensors, _OPTIMIZER)
        forms = {key: (tuple(value.shape), value.dtype) for key, value in state.items()}
        self._loop.optimizer.restore(forms, state)
        done = said["done"]
        self.done = Trained(**{**done, "curve": [(int(t), float(v)) for t, v in done["curve"]]})
        self.resumed = True


def inner_of(inner: Inner, wanted: Plan) -> Inner:
    """The site's inner loop with the baseline's batch and rate; no more sequences at once than a
    site has, so that it needs no more memory."""
    batch = wanted.batch_sequences
    at_once = inner.batch_sequences // inner.accumulate
    passes = next(n for n in range(1, batch + 1) if batch % n == 0 and batch // n <= at_once)
    changes = {"batch_sequences": batch, "lr": wanted.lr, "accumulate": passes}
    return inner.model_copy(update=changes)


def _part(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{prefix}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}/")
    }


def _thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Every two points as one, the mean of both at the later one."""
    pairs = zip(curve[::2], curve[1::2], strict=False)
    kept = [(later, (a + b) / 2) for (_, a), (later, b) in pairs]
    return kept + curve[len(kept) * 2 :]
