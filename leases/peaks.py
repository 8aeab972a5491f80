"""What a device can do at most, and what a token of training costs it: for utilisation. Pure."""

from __future__ import annotations

import re
from typing import Any

# Dense bf16 with fp32 sums, FLOP/s a device as torch sees it, by part of its name; the first that
# fits. From the vendors' data sheets and architecture papers, without structured sparsity, which
# doubles NVIDIA's printed figures: H100, H200, GH200 (989.4 SXM, 756 PCIe), A100 (312), A40, A10,
# L40S, L4, B200 (DGX B200), RTX 4090 (Ada paper), RTX 3090 (GA102 paper); AMD Instinct MI210,
# MI250X (383 a card of two devices), MI300A, MI300X, MI325X.
PEAKS: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 756e12),
    ("GH200", 989.4e12),
    ("H100", 989.4e12),
    ("H200", 989.4e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("A40", 149.7e12),
    ("A10", 125e12),
    ("L40S", 362.05e12),
    ("L4", 121e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
    ("MI250X", 191.5e12),
    ("MI250", 181e12),
    ("MI210", 181e12),
    ("MI300A", 980.6e12),
    ("MI300X", 1307.4e12),
    ("MI325X", 1307.4e12),
)


def peak_of(device: str) -> float | None:
    """FLOP/s of a device by its name; None where it is not known, as of every processor."""
    for name, peak in PEAKS:
        if re.search(rf"\b{name}\b", device, re.IGNORECASE):
            return peak
    return None


def flops_per_token(num_parameters: int, model: dict[str, Any], sequence_tokens: int) -> float:
    """FLOPs of forward and backward for one token: 6N, and 12·L·H·Q·T for attention where the
    model's table says its layers L, heads H and their dimension Q (PaLM, arXiv:2204.02311,
    appendix B); recomputed activations are no progress, and do not count."""
    layers, heads = model.get("num_hidden_layers"), model.get("num_attention_heads")
    width = model.get("head_dim")
    if width is None and heads and model.get("hidden_size"):
        width = model["hidden_size"] / heads
    if not (layers and heads and width):
        return 6.0 * num_parameters
    return 6.0 * num_parameters + 12.0 * float(layers * heads * width) * sequence_tokens
