"""The plan of a configuration in words (`atoll run create --check`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outer.waiting import span

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(num_bytes: float) -> str:
    """Bytes for people: 2.38 GB."""
    for unit, name in _UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{num_bytes:.0f} B"


def lines(plan: dict[str, Any], assumed: list[str]) -> Iterator[str]:
    """What it comes to, a line each."""
    device, host, time = plan["device_bytes"], plan["host_bytes"], plan["time"]
    yield f"parameters           {plan['parameters']:,}"
    yield (
        f"data                 {plan['blocks_per_epoch']:,} blocks an epoch, "
        f"{plan['epoch_tokens']:,} tokens"
    )
    yield (
        f"a round              {plan['inner_steps_per_round']:,} inner steps, "
        f"{plan['blocks_per_round_and_site']:,} blocks a site; {plan['sites']} sites: "
        f"{plan['tokens_per_round']:,} tokens"
    )
    yield (
        f"the run              {plan['rounds']:,} rounds, {plan['tokens']:,} tokens, "
        f"{plan['epochs']:.3g} epochs"
    )
    parts = ("parameters", "gradients", "optimizer", "activations_estimated", "logits")
    named = ", ".join(f"{name.partition('_')[0]} {size(device[name])}" for name in parts)
    yield f"memory of a device   about {size(device['total_estimated'])}: {named}"
    yield f"memory of a host     {size(host['total'])}: θ, momentum, anchor, residual"
    traffic = "; ".join(
        f"{name} {size(one['bytes'])} ({span(one['seconds'])})"
        for name, one in plan["codecs"].items()
    )
    yield f"each way, each round {traffic}"
    yield f"a snapshot           {size(plan['snapshot_bytes'])}"
    if time is None:
        yield "time                 not known: give --device NAME, or --tokens-per-s N of a site"
    else:
        yield from _time(time)
    for warning in plan["warnings"]:
        yield f"warning              {warning}"
    for one in assumed:
        yield f"assumed              {one}"


def _time(time: dict[str, Any]) -> Iterator[str]:
    beside = "beside it" if time["overlapped"] else "after it"
    yield (
        f"time                 a round trains for {span(time['training_s'])}, the exchange takes "
        f"{span(time['exchange_s'])} {beside}: {time['overhead_share']:.1%} of the time is waited"
    )
    yield f"                     the run takes about {span(time['run_s'])}"
