"""The router's flags."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.config import flag, require
from paceline.defaults import DEFAULT_MODEL_PATH, DEFAULT_TREE
from paceline.errors import ConfigError, InvalidInputError
from paceline.logs import LEVELS
from paceline.plumbing import ServiceFlags
from paceline.ports import Listener, listeners_of, require_apart
from paceline.types import TreeShape
from router.discovery import parse_sources
from router.discovery_watch import PeerWatch
from router.policy import Policy, PolicyKind
from router.tenants import RateLimit


@dataclass(frozen=True, slots=True)
class RouterConfig(ServiceFlags):
    """Paceline's router: text, the queue, and the decision whether and how far to speculate.

    Raises ConfigError naming the flag, its value and what is allowed.
    """

    host: str = flag("127.0.0.1", help="address to listen on")
    port: int = flag(7100, help="port to listen on; 0 takes a free one")
    metrics_port: int = flag(0, help="port of the Prometheus metrics; 0 is off")
    page_port: int | None = flag(None, help="port of the live page (HTTP); unset: none; 0 takes a free one")
    page_host: str = flag("127.0.0.1", help="address of the live page, which shows the text of requests")
    trace_sample_ratio: float = flag(
        0.01, help="share of the requests that are traced where the caller does not say, 0 to 1"
    )
    log_requests: bool = flag(False, help="log a line a request at its end")
    log_level: str = flag("info", help="least severe log lines to write", choices=LEVELS)
    check: bool = flag(False, help="check flags, files and ports as the start does and end, without serving")
    drain_timeout_s: float = flag(30.0, help="seconds that running requests get after SIGTERM")
    targets: tuple[str, ...] = flag(
        ("127.0.0.1:7200",), help="target services, each host:port, dns:///name:port or file:///list"
    )
    drafts: tuple[str, ...] = flag((), help="draft services, likewise; none is plain decoding")
    discovery_interval_s: float = flag(2.0, help="seconds between looks at the names and lists among these")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the model's tokenizer and chat template")
    max_queued_requests: int = flag(1024, help="requests that may wait for a target; more are refused")
    priority_ageing_s: float = flag(
        10.0, help="seconds of waiting that weigh as much as one level of priority; 0: priorities do not count"
    )
    tenant_weights: tuple[str, ...] = flag((), help="shares of tenants, name=weight,...; others have 1")
    tenant_rate_limit: int = flag(0, help="requests of a tenant that may start in a period; 0: any number")
    tenant_rate_period_s: float = flag(1.0, help="the period of --tenant-rate-limit, in seconds")
    tenant_rate_wait_s: float = flag(1.0, help="seconds that a request waits for its tenant's rate, then is refused")
    api_keys: str = flag("", help="file with a line 'TENANT sha256:HEX' a key, watched; unset: anybody may ask")
    max_tenants: int = flag(1024, help="tenants that the rate limit keeps at once; idle ones are forgotten")
    target_tpot_ms: float = flag(
        0.0, help="milliseconds a token of running streams that prompts beside them must keep; 0: prompts go first"
    )
    queue_timeout_s: float = flag(30.0, help="seconds that a request waits while no target can be reached")
    max_attempts: int = flag(4, help="attempts that may pass without a new token before a request fails")
    target_timeout_s: float = flag(60.0, help="seconds without a word from a busy target before it counts as dead")
    stream_interval: int = flag(8, help="steps whose tokens one message may join while many stream; 1: each step's own")
    client_buffer_tokens: int = flag(4096, help="tokens kept for a client that reads too slowly; then it is cut off")
    speculative_policy: str | None = flag(
        None,
        help="when to speculate; unset: threshold with --speculative-disable-batch-threshold, always with a tree other "
        "than the default one, else adaptive",
        choices=tuple(kind.value for kind in PolicyKind),
    )
    speculative_disable_batch_threshold: int | None = flag(
        None, help="decoding requests of a target above which it does not speculate"
    )
    speculative_hysteresis: int = flag(
        2, help="how far below the threshold a target must fall before it speculates again"
    )
    speculative_num_steps: int = flag(DEFAULT_TREE.num_steps, help="levels of a draft tree below the root")
    speculative_eagle_topk: int = flag(DEFAULT_TREE.eagle_topk, help="beam width of a draft tree; 1 is a chain")
    speculative_num_draft_tokens: int = flag(DEFAULT_TREE.num_draft_tokens, help="nodes to verify, root included")

    @property
    def listeners(self) -> list[Listener]:
        """The ports that its flags name."""
        own = listeners_of(self.host, self.port, metrics_port=self.metrics_port, health_port=self.health_port)
        return own if self.page_port is None else [*own, Listener("--page-port", self.page_host, self.page_port)]

    def __post_init__(self) -> None:
        self.check_service_flags()
        for name in ("port", "metrics_port"):
            require(0 <= getattr(self, name) < 65536, name, getattr(self, name), "0 to 65535")
        require(0 <= self.trace_sample_ratio <= 1, "trace_sample_ratio", self.trace_sample_ratio, "0 to 1")
        page_port = self.page_port
        require(page_port is None or 0 <= page_port < 65536, "page_port", page_port, "0 to 65535, or unset")
        require_apart(self.listeners)
        nonnegative = ("drain_timeout_s", "queue_timeout_s", "speculative_hysteresis", "priority_ageing_s")
        for name in (*nonnegative, "tenant_rate_limit", "target_tpot_ms"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        positive = ("max_queued_requests", "max_attempts", "stream_interval", "client_buffer_tokens", "max_tenants")
        for name in positive:
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("target_timeout_s", "tenant_rate_period_s", "tenant_rate_wait_s", "discovery_interval_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        self.weights()
        require(bool(self.targets), "targets", "empty", "at least one host:port")
        for name in ("targets", "drafts"):
            self.watch(name)
        self._check_speculation()

    def watch(self, name: str) -> PeerWatch:
        """Over the peers that the flag of that name, targets or drafts, stands for."""
        sources = parse_sources(getattr(self, name), flag_name=name)
        return PeerWatch(sources, interval_s=self.discovery_interval_s)

    def policy(self) -> Policy:
        """The policy that the speculative flags ask for."""
        threshold = self.speculative_disable_batch_threshold
        shape = TreeShape(self.speculative_num_steps, self.speculative_eagle_topk, self.speculative_num_draft_tokens)
        if self.speculative_policy is not None:
            kind = PolicyKind(self.speculative_policy)
        elif threshold is not None:
            kind = PolicyKind.THRESHOLD
        else:
            kind = PolicyKind.ADAPTIVE if shape == DEFAULT_TREE else PolicyKind.ALWAYS
        return Policy(kind, shape, threshold=threshold or 0, hysteresis=self.speculative_hysteresis)

    def weights(self) -> dict[str, float]:
        """Of the tenants that --tenant-weights names."""
        weights = {}
        for entry in self.tenant_weights:
            name, _, number = entry.rpartition("=")
            try:
                weight = float(number)
            except ValueError:
                weight = 0.0
            require(bool(name) and 0 < weight < math.inf, "tenant_weights", entry, "name=weight, a weight above 0")
            weights[name] = weight
        return weights

    def rate_limit(self) -> RateLimit | None:
        """Of each tenant; None: there is none."""
        if not self.tenant_rate_limit:
            return None
        return RateLimit(
            self.tenant_rate_limit,
            self.tenant_rate_period_s,
            wait_s=self.tenant_rate_wait_s,
            max_tenants=self.max_tenants,
        )

    def _check_speculation(self) -> None:
        threshold = self.speculative_disable_batch_threshold
        name = "speculative_disable_batch_threshold"
        require(threshold is None or threshold >= 1, name, threshold, "at least 1; --speculative-policy off is never")
        if self.speculative_policy == "threshold":
            require(threshold is not None, name, "unset", "given with --speculative-policy threshold")
        elif self.speculative_policy is not None:
            require(threshold is None, name, threshold, f"unset with --speculative-policy {self.speculative_policy}")
        try:
            self.policy()
        except InvalidInputError as error:
            raise ConfigError(f"the flags --speculative-* give no tree: {error}") from error
