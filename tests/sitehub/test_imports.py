"""What a hub imports is light: the trainer is the process that pays for torch."""

from __future__ import annotations

import subprocess
import sys


def test_hub_side_loads_no_torch_and_no_tokenizers() -> None:
    code = (
        "import sys, sitehub.corpus, sitehub.spawn, sitehub.wire, sitehub.schedule; "
        "print(*sorted({'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
