"""One side of `atoll bench torchft`: two replica groups of torchft's DiLoCo over gloo.

    PYTHON torchft_peer.py SHAPES.json ROUNDS

PYTHON has torchft and needs nothing of atoll. Prints, one JSON line a round and replica,
{"replica", "round", "trained", "ready"}: when its inner steps were done and when its parameters
were the next version's, in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

REPLICAS = 2
LR, MOMENTUM = 0.7, 0.9  # of the outer step: Nesterov, as atoll's


def main(argv: list[str]) -> int:
    """The lighthouse and the replicas' processes; or one replica of them."""
    shapes, rounds = json.loads(Path(argv[0]).read_text()), int(argv[1])
    if len(argv) > 2:
        return _replica(shapes, rounds, int(argv[2]), argv[3])
    lighthouse: Any = importlib.import_module("torchft.coordination").LighthouseServer(
        bind="[::]:0", min_replicas=REPLICAS
    )
    processes = [
        subprocess.Popen([sys.executable, __file__, *argv, str(number), lighthouse.address()])
        for number in range(REPLICAS)
    ]
    try:
        return max(abs(process.wait()) for process in processes)
    finally:
        for process in processes:
            process.kill()
        lighthouse.shutdown()


def _replica(shapes: list[list[int]], rounds: int, number: int, lighthouse: str) -> int:
    torch.set_num_threads(1)
    torchft: Any = importlib.import_module("torchft")
    local_sgd: Any = importlib.import_module("torchft.local_sgd")
    store: Any = importlib.import_module("torch.distributed").TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    torch.manual_seed(0)
    model = torch.nn.ParameterList(torch.randn(shape).mul_(0.02) for shape in shapes)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=REPLICAS,
        use_async_quorum=False,  # DiLoCo asks for it
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=lambda: model.state_dict(),
        replica_id=f"bench_{number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
    )
    trained = [0.0]
    inner.register_step_post_hook(lambda *_: trained.__setitem__(0, time.monotonic()))
    gradients = [torch.randn_like(parameter) for parameter in model]  # an inner step costs nothing
    with local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=1):
        for round_ in range(rounds):
            for parameter, gradient in zip(model, gradients, strict=True):
                parameter.grad = gradient
            inner.step()  # and, behind it, the outer round
            said = {"replica": number, "round": round_, "trained": trained[0]}
            print(json.dumps({**said, "ready": time.monotonic()}), flush=True)
            if manager.current_step() != round_ + 1:
                raise RuntimeError(f"round {round_} was not committed")
    manager.shutdown(wait=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
