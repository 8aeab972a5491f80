"""The peer of `atoll bench inner`: a training loop of torch and transformers, and nothing else.

python -m ops.bench.inner_bare TASK        TASK is JSON; prints tokens per second
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from transformers import AutoConfig, AutoModelForCausalLM

_WARM = 8  # steps before the clock starts


def main(task: dict[str, Any]) -> float:
    """Tokens per second of a window. Batches are made before, so data cost it nothing."""
    torch.set_num_threads(1)
    inner, table = task["inner"], dict(task["model"])
    config = AutoConfig.for_model(
        table.pop("model_type"), **{"vocab_size": task["vocab_size"], **table}
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=inner["lr"],
        betas=(inner["beta1"], inner["beta2"]),
        eps=inner["eps"],
        weight_decay=inner["weight_decay"],
        fused=True,
    )
    shape = (64, inner["batch_sequences"], task["sequence_tokens"] + 1)
    batches = torch.randint(task["vocab_size"], shape)
    step = tokens = 0
    began = time.perf_counter()
    while True:
        batch = batches[step % len(batches)]
        inputs, targets = batch[:, :-1], batch[:, 1:]
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        clip_grad_norm_(model.parameters(), inner["clip_norm"])
        optimizer.step()
        loss.item()
        step += 1
        tokens += targets.numel()
        if step == _WARM:
            began, tokens = time.perf_counter(), 0
        if step > _WARM and (took := time.perf_counter() - began) >= task["window_s"]:
            return tokens / took


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
