"""The parameters of Qwen3-0.6B by name and shape (its published config.json), tied weights once."""

from __future__ import annotations

from dataclasses import dataclass

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a Qwen3: the fields of its configuration."""

    vocabulary: int = 151_936
    layers: int = 28
    hidden: int = 1024
    intermediate: int = 3072
    head: int = 128
    heads: int = 16
    key_value_heads: int = 8


NUM_PARAMETERS = 596_049_920  # of Qwen3-0.6B
SMALL = Sizes(vocabulary=4_000, layers=1, hidden=256, intermediate=768, heads=4, key_value_heads=2)


def shapes(sizes: Sizes = Sizes()) -> Shapes:
    """Name and shape of each parameter, sorted by name."""
    one = sizes
    queries, keys = one.heads * one.head, one.key_value_heads * one.head
    layer: Shapes = {
        "input_layernorm.weight": (one.hidden,),
        "mlp.down_proj.weight": (one.hidden, one.intermediate),
        "mlp.gate_proj.weight": (one.intermediate, one.hidden),
        "mlp.up_proj.weight": (one.intermediate, one.hidden),
        "post_attention_layernorm.weight": (one.hidden,),
        "self_attn.k_norm.weight": (one.head,),
        "self_attn.k_proj.weight": (keys, one.hidden),
        "self_attn.o_proj.weight": (one.hidden, queries),
        "self_attn.q_norm.weight": (one.head,),
        "self_attn.q_proj.weight": (queries, one.hidden),
        "self_attn.v_proj.weight": (keys, one.hidden),
    }
    found: Shapes = {
        "model.embed_tokens.weight": (one.vocabulary, one.hidden),
        "model.norm.weight": (one.hidden,),
    }
    for number in range(one.layers):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return dict(sorted(found.items()))
