"""What is asked of the services: the prompts, and the ways to decode that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from client.credentials import Credentials
from client.request import GenerateOptions, Message, Sampling, Speculation
from paceline.tls import TlsIdentity
from paceline.types import TreeShape

PLAIN, SPECULATIVE = "plain", "speculative"


@dataclass(frozen=True, slots=True)
class Variant:
    """Plain decoding, or speculation with a shape (None: as the router decides)."""

    mode: str
    shape: TreeShape | None = None

    @property
    def label(self) -> str:
        if self.shape is None:
            return self.mode
        return f"({self.shape.num_steps},{self.shape.eagle_topk},{self.shape.num_draft_tokens})"

    @property
    def key(self) -> tuple[str, TreeShape | None]:
        return self.mode, self.shape

    def options(self) -> GenerateOptions:
        speculation: Speculation = False if self.mode == PLAIN else self.shape
        return GenerateOptions(speculation=speculation)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests are numbered; they take the prompts in turn, and a prompt's sampling is the same in every run."""

    address: str
    prompts: Sequence[str]
    samplings: Sequence[Sampling]  # one a prompt
    credentials: Credentials = field(default_factory=Credentials)  # of the clients

    def tls(self) -> TlsIdentity | None:
        """For calls to the services behind the router. Raises ConfigError."""
        files = self.credentials.tls
        return None if files is None else TlsIdentity(files)

    def messages(self, number: int) -> list[Message]:
        return [Message("user", self.prompts[number % len(self.prompts)])]

    def sampling(self, number: int) -> Sampling:
        return self.samplings[number % len(self.samplings)]
