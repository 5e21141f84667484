"""How many KV pages a request takes: one formula for the router that spends credits and the target that grants them."""

from __future__ import annotations


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold num_tokens tokens."""
    return -(-num_tokens // page_size)


def pages_to_reserve(*, prompt_len: int, max_tokens: int, max_nodes: int, page_size: int) -> int:
    """Pages reserved at admission: the prompt, what may be generated, and the largest tree's scratch past it."""
    return pages_for(prompt_len + max_tokens + max_nodes, page_size)
