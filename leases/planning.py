"""What a configuration comes to, before anything is run: memory, traffic, rounds, time. Pure.

What is computed is exact where it follows from the configuration, and an estimate, said to be one,
where it rests on a device or a link that nobody has measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eventlog.config import RunConfig
from eventlog.events import DataShape
from leases.blocks import BlockIndex
from leases.peaks import flops_per_token, peak_of
from leases.progress import goal

# bits of an element of each codec, scales included (docs/codecs.md)
CODEC_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.125, "4-bit": 4.125, "top-k": 0.227}


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a plan rests on beside the configuration. `device`: by its name; `tokens_per_s`: of a
    site, in place of the device's peak times `utilisation`; `link_bytes_per_s`: each way."""

    num_sites: int = 3
    device: str = ""
    tokens_per_s: float | None = None
    utilisation: float = 0.4
    link_bytes_per_s: float = 100e6


def planned(
    config: RunConfig, shape: DataShape, num_parameters: int, vocab_size: int, assumed: Assumed
) -> dict[str, Any]:
    """The documented object of `atoll run create --check` (docs/steering.md)."""
    index = BlockIndex(config.seed, shape)
    round_tokens = assumed.num_sites * config.blocks_per_round * index.block_tokens
    rounds = _rounds(config, index, round_tokens)
    tokens = _tokens(config, index, rounds * round_tokens)
    time = _time(config, shape, num_parameters, assumed, rounds)
    found = {
        "parameters": num_parameters,
        "sequence_tokens": shape.sequence_tokens,
        "blocks_per_epoch": index.num_blocks,
        "epoch_tokens": index.epoch_tokens,
        "steps_per_block": config.steps_per_block,
        "blocks_per_round_and_site": config.blocks_per_round,
        "inner_steps_per_round": config.blocks_per_round * config.steps_per_block,
        "sites": assumed.num_sites,
        "tokens_per_round": round_tokens,
        "rounds": rounds,
        "tokens": tokens,
        "epochs": tokens / index.epoch_tokens,
        "warnings": _warnings(config, shape, time),
        "device_bytes": _device(config, shape, num_parameters, vocab_size),
        "host_bytes": _host(num_parameters),
        "codecs": _traffic(num_parameters, assumed),
        "snapshot_bytes": 12 * num_parameters,
    }
    return {**found, "time": time}


def _rounds(config: RunConfig, index: BlockIndex, round_tokens: int) -> int:
    aim = goal(config, index)
    return aim.rounds if aim.rounds is not None else -(-(aim.tokens or 0) // round_tokens)


def _tokens(config: RunConfig, index: BlockIndex, most: int) -> int:
    """What is merged at the end: a target in epochs is met exactly, one in tokens by whole blocks;
    the last round is shorter then."""
    aim, a_block = goal(config, index).tokens, index.block_tokens
    if aim is None:
        return most
    return aim if config.target.epochs is not None else min(most, -(-aim // a_block) * a_block)


def _warnings(config: RunConfig, shape: DataShape, time: dict[str, Any] | None) -> list[str]:
    """What is possible and hardly meant."""
    found = []
    if shape.block_sequences > shape.num_sequences:
        found.append(
            f"data.block_sequences = {shape.block_sequences}, and the data have "
            f"{shape.num_sequences} sequences: an epoch is one short block, for one site"
        )
    if time is not None and not time["within_deadline"]:
        found.append(
            "rounds.deadline_s is shorter than a round's training: every round would be cut by it"
        )
    return found


def _device(config: RunConfig, shape: DataShape, num: int, vocab: int) -> dict[str, int]:
    """Bytes on the device of a site with one rank; FSDP divides all but the activations by the
    number of ranks. Activations: 34 bytes a token, hidden unit and layer in 16 bits, without the
    scores that fused attention never stores (Korthikanti et al., arXiv:2205.05198, section 4.1),
    2 where they are recomputed; and the logits with their gradient."""
    inner, model = config.inner, config.model
    rows = inner.batch_sequences // inner.accumulate
    tokens = rows * shape.sequence_tokens
    a_layer = 2 if inner.activation_checkpointing else 34
    width = int(model.get("hidden_size") or 0) * int(model.get("num_hidden_layers") or 0)
    found = {
        "parameters": 4 * num,
        "gradients": 4 * num,
        "optimizer": 8 * num,  # Muon keeps one number a matrix element, not two
        "activations_estimated": a_layer * tokens * width,
        "logits": 10 * tokens * vocab,  # 16 bits, then fp32, and its gradient
    }
    return {**found, "total_estimated": sum(found.values())}


def _host(num: int) -> dict[str, int]:
    """Bytes in the memory of the machine of a site, beside the trainer's own."""
    found = {"parameters": 4 * num, "momentum": 4 * num, "anchor": 4 * num, "residual": 4 * num}
    return {**found, "total": sum(found.values())}


def _traffic(num: int, assumed: Assumed) -> dict[str, dict[str, float]]:
    """What a site sends and gets in a round, by codec of either, and how long the link takes."""
    found = {}
    for name, bits in CODEC_BITS.items():
        size = num * bits / 8
        found[name] = {"bytes": size, "seconds": size / assumed.link_bytes_per_s}
    return found


def _time(
    config: RunConfig, shape: DataShape, num: int, assumed: Assumed, rounds: int
) -> dict[str, Any] | None:
    """How long a round and the run may take, and the share of it that training waits for the
    exchange: delta up, all deltas to the coordinator, update down, over links of equal rate. With
    overlap the exchange takes as long, beside training. None where no rate is known."""
    rate = assumed.tokens_per_s
    peak = peak_of(assumed.device)
    if rate is None and peak is not None:
        flops = flops_per_token(num, config.model, shape.sequence_tokens)
        rate = peak * assumed.utilisation / flops
    if not rate:
        return None
    block_tokens = shape.block_sequences * shape.sequence_tokens
    training_s = config.blocks_per_round * block_tokens / rate
    up, down = (CODEC_BITS[name] for name in (config.outer.delta_codec, config.outer.update_codec))
    per_bit = num / 8 / assumed.link_bytes_per_s
    exchange_s = per_bit * (up * (1 + assumed.num_sites) + down * 2)
    hidden = config.outer.overlap != "none"
    waits_s = max(0.0, exchange_s - training_s) if hidden else exchange_s
    round_s = training_s + waits_s
    return {
        "tokens_per_s_and_site": rate,
        "training_s": training_s,
        "exchange_s": exchange_s,
        "overlapped": hidden,
        "overhead_share": waits_s / round_s,
        "round_s": round_s,
        "run_s": rounds * round_s,
        "within_deadline": training_s <= config.rounds.deadline_s,
    }
