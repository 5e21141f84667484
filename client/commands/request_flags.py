"""Flags that every command with a request has: the router's address, sampling, speculation."""

from __future__ import annotations

from dataclasses import dataclass

from client.commands.connection_flags import ConnectionFlags
from client.request import GenerateOptions, Sampling, Speculation
from paceline.config import flag
from paceline.errors import ConfigError
from paceline.types import TreeShape


@dataclass(frozen=True, slots=True)
class TreeFlags:
    """A tree shape as three flags: all or none. Raises ConfigError, or InvalidInputError for a shape that cannot be."""

    speculative_num_steps: int | None = flag(None, help="levels of the draft tree; unset: the router's")
    speculative_eagle_topk: int | None = flag(
        None, help="beam width of the draft tree, 1 for a chain; unset: the router's"
    )
    speculative_num_draft_tokens: int | None = flag(None, help="nodes to verify, root included; unset: the router's")

    def tree_shape(self) -> TreeShape | None:
        """None where no flag is given."""
        steps, topk, nodes = self.speculative_num_steps, self.speculative_eagle_topk, self.speculative_num_draft_tokens
        if steps is None and topk is None and nodes is None:
            return None
        if steps is None or topk is None or nodes is None:
            raise ConfigError(
                "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens come together: "
                "give all three or none"
            )
        return TreeShape(steps, topk, nodes)


@dataclass(frozen=True, slots=True)
class RequestFlags(ConnectionFlags, TreeFlags):
    """How a request is drawn, whether it speculates, and how it wants to be served."""

    max_tokens: int | None = flag(None, help="new tokens at most; unset: 128")
    temperature: float | None = flag(None, help="0 is greedy; unset: 0")
    top_k: int | None = flag(None, help="draw from the k most likely tokens; 0 is all")
    top_p: float | None = flag(None, help="draw from the most likely tokens that hold this much probability")
    min_p: float | None = flag(None, help="draw from tokens of at least this share of the likeliest one's probability")
    seed: int | None = flag(None, help="the same seed gives the same tokens; unset: the router draws one")
    stop_token_ids: tuple[str, ...] = flag((), help="token ids that end the answer, comma-separated")
    ignore_eos: bool = flag(False, help="go on past the model's end token")
    tenant: str = flag("", help="whose request it is: the router shares the fleet fairly between tenants")
    priority: int | None = flag(
        None, help="-10 to 10; the highest of a tenant's requests leaves the queue first; unset: 0"
    )
    deadline_s: float | None = flag(None, help="seconds to the last token; a request that takes longer fails")
    speculation: bool = flag(True, help="let the router speculate; --no-speculation is plain decoding")

    def sampling(self) -> Sampling:
        """Raises InvalidInputError for a value out of its range, ConfigError for a stop token that is no number."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            stop_token_ids=parse_ids(self.stop_token_ids, "stop-token-ids"),
            ignore_eos=self.ignore_eos,
        )

    def options(self) -> GenerateOptions:
        shape = self.tree_shape()
        if shape is not None and not self.speculation:
            raise ConfigError("--no-speculation and a tree's shape exclude each other: leave one out")
        speculation: Speculation = shape if self.speculation else False
        return GenerateOptions(
            speculation=speculation, tenant=self.tenant, priority=self.priority, deadline_s=self.deadline_s
        )


def parse_ids(parts: tuple[str, ...], flag_name: str) -> tuple[int, ...]:
    """Raises ConfigError naming the flag and the part that is no number."""
    for part in parts:
        if not part.isdecimal():
            raise ConfigError(f"--{flag_name} holds {part!r}; it takes token ids, comma-separated")
    return tuple(int(part) for part in parts)
