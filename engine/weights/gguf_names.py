"""GGUF's tensor names and Hugging Face's, and the one change of layout between them."""

from __future__ import annotations

from torch import Tensor

ROPE_FREQS = "rope_freqs.weight"

_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(gguf_name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor, such as blk.0.attn_q.weight; None for one that has none."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _IN_LAYER:
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{kind}"
    return None


def by_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Undoes GGUF's order of Llama's q and k rows: [heads x d/2 x 2, ...] to Hugging Face's [heads x 2 x d/2, ...]."""
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
