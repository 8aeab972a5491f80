"""An exported version is what transformers alone makes of it: the run's model, bit for bit."""

from __future__ import annotations

import json
import os
import sys
from asyncio import create_subprocess_exec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from outer.recover import parameters_at
from sitehub.batches import heldout_batches
from sitehub.corpus import Corpus
from sitehub.model import build_model, load_into
from tests.support.fleet import Fleet

FRESH = """
import json, sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
folder, rows = sys.argv[1], load_file(sys.argv[2])["rows"]
model = AutoModelForCausalLM.from_pretrained(folder).eval()
with torch.inference_mode():
    logits = model(input_ids=rows[:, :-1]).logits
    losses = [float(model(input_ids=row[None], labels=row[None]).loss) for row in rows]
tokenizer = AutoTokenizer.from_pretrained(folder)
write = pipeline("text-generation", model=folder, tokenizer=folder)
print(json.dumps({
    "dtype": str(model.dtype),
    "digest": float(logits.double().sum()),
    "loss": sum(losses) / len(losses),
    "tied": model.lm_head.weight is model.model.embed_tokens.weight,
    "ids": tokenizer("def f(x):\\n    return 'x'").input_ids,
    "text": write("def ", max_new_tokens=8, do_sample=False)[0]["generated_text"],
}))
"""


@pytest.mark.settings("target.rounds=2", "inner.steps=16")
async def test_exported_version_is_the_runs_model(fleet: Fleet, tmp_path: Path) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    for name in ("alpha", "coordinator"):
        assert await fleet.ended(name, 120) == 0
    data, target = ("--data", str(fleet.data)), tmp_path / "model"
    evaluated = (await fleet.atoll("eval", fleet.run, *data, "--json")).json()
    told = (await fleet.atoll("export", fleet.run, str(target), "--json")).json()
    assert (told["version"], told["audit_ok"]) == (2, True)
    assert told["evaluation"]["loss"] == evaluated["loss"]

    corpus = Corpus.open(fleet.data)
    async with await connect(fleet.url, name="test") as connection:
        blobs = await JetStreamBlobs.open(connection, fleet.run)
        parameters = await parameters_at(fleet.history.view, blobs, tmp_path, 2)
        await blobs.close()
    exported = load_file(target / "model.safetensors")
    assert len({file.stat().st_mode for file in target.iterdir()}) == 1  # all, or none, may read it
    assert exported.keys() == parameters.keys()  # tied weights once
    assert all(torch.equal(value, parameters[name]) for name, value in exported.items())

    rows = torch.cat(
        [
            torch.cat([inputs, targets[:, -1:]], 1)
            for inputs, targets in heldout_batches(corpus, corpus.manifest.heldout.num_sequences, 8)
        ]
    )
    fresh = await in_a_fresh_process(target, rows, tmp_path)
    model = build_model(fleet.history.view.config().model, corpus.vocab_size, 0)
    load_into(model, parameters)
    with torch.inference_mode():
        logits = model.eval()(input_ids=rows[:, :-1], use_cache=False).logits
    assert fresh["digest"] == float(logits.double().sum())
    assert fresh["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    assert (fresh["dtype"], fresh["tied"]) == ("torch.float32", True)
    text = "def f(x):\n    return 'x'"
    assert fresh["ids"] == corpus.tokenizer.encode(text, add_special_tokens=False).ids
    assert str(fresh["text"]).startswith("def ")
    card = (target / "README.md").read_text()
    assert "found no violation" in card and f"{evaluated['loss']:.4f} nats" in card

    again = await fleet.atoll("export", fleet.run, str(target))
    assert again.code == 2 and "not empty" in again.err


async def in_a_fresh_process(target: Path, rows: torch.Tensor, folder: Path) -> dict[str, object]:
    """What transformers makes of the directory, where nothing of ours is imported."""
    from safetensors.torch import save_file

    save_file({"rows": rows}, folder / "rows.safetensors")
    process = await create_subprocess_exec(
        *(sys.executable, "-c", FRESH, str(target), str(folder / "rows.safetensors")),
        stdout=-1,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, object] = json.loads(out.splitlines()[-1])
    return found
