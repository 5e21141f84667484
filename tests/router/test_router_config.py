"""The router's flags, and what they refuse."""

from __future__ import annotations

import pytest

from paceline.config import parse_flags
from paceline.defaults import DEFAULT_TREE
from paceline.errors import ConfigError
from router.config import RouterConfig
from router.policy import PolicyKind
from router.tenants import RateLimit


def parsed(*argv: str) -> RouterConfig:
    return parse_flags(RouterConfig, argv, prog="router")


def test_the_default_adapts_and_begins_with_the_default_tree() -> None:
    policy = parsed().policy()
    assert policy.kind is PolicyKind.ADAPTIVE
    assert policy.shape == DEFAULT_TREE


def test_a_tree_by_flags_is_always_that_tree_unless_a_policy_is_named() -> None:
    tree = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
    assert parsed(*tree).policy().kind is PolicyKind.ALWAYS
    assert parsed(*tree, "--speculative-policy", "adaptive").policy().kind is PolicyKind.ADAPTIVE


def test_a_threshold_brings_its_policy() -> None:
    policy = parsed("--speculative-disable-batch-threshold", "8", "--speculative-hysteresis", "3").policy()
    assert (policy.kind, policy.threshold, policy.resume_level) == (PolicyKind.THRESHOLD, 8, 5)


def test_lists_of_addresses_are_split_at_commas() -> None:
    config = parsed("--targets", "a:1,b:2", "--drafts", "c:3")
    assert config.targets == ("a:1", "b:2")
    assert config.drafts == ("c:3",)


def test_tenants_have_their_weights_and_one_rate_where_asked() -> None:
    config = parsed("--tenant-weights", "gold=3,a=b=0.5", "--tenant-rate-limit", "5")
    assert config.weights() == {"gold": 3.0, "a=b": 0.5}
    assert config.rate_limit() == RateLimit(5, 1.0, wait_s=1.0, max_tenants=1024)
    assert parsed().rate_limit() is None


def test_a_page_on_an_address_of_its_own_may_have_the_routers_port() -> None:
    assert parsed("--page-host", "127.0.0.2", "--page-port", "7100").page_port == 7100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--port", "70000"), "--port is 70000"),
        (("--metrics-port", "7100"), "--port and --metrics-port are both 7100"),
        (("--page-port", "7100"), "--port and --page-port are both 7100"),
        (("--targets", ""), "--targets is empty"),
        (("--targets", "nowhere"), "--targets is nowhere; it must be host:port"),
        (("--drafts", "a:1,a:1"), "--drafts is a:1,a:1; it must be free of repetitions"),
        (("--max-queued-requests", "0"), "--max-queued-requests is 0"),
        (("--tenant-rate-limit", "-1"), "--tenant-rate-limit is -1"),
        (("--tenant-rate-period-s", "0"), "--tenant-rate-period-s is 0.0; it must be more than 0"),
        (("--tenant-weights", "gold"), "--tenant-weights is gold; it must be name=weight"),
        (("--tenant-weights", "gold=0"), "--tenant-weights is gold=0"),
        (("--target-tpot-ms", "-5"), "--target-tpot-ms is -5.0; it must be 0 or more"),
        (("--speculative-policy", "threshold"), "--speculative-disable-batch-threshold is unset"),
        (("--speculative-disable-batch-threshold", "0"), "--speculative-disable-batch-threshold is 0"),
        (("--speculative-policy", "off", "--speculative-disable-batch-threshold", "4"), "unset with"),
        (("--speculative-num-draft-tokens", "65"), "num_draft_tokens is 65"),
        (("--speculative-policy", "sometimes"), "invalid choice"),
        (("--stream-interval", "0"), "--stream-interval is 0; it must be at least 1"),
        (("--otlp-traces-endpoint", "foo bar"), "--otlp-traces-endpoint is foo bar; it must be a URL like http://HOST"),
    ],
)
def test_a_bad_flag_is_refused_by_name_and_value(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parsed(*argv)
