"""What the draft's flags refuse before anything is loaded."""

from __future__ import annotations

import itertools

import pytest

from draft_service.config import DraftConfig
from paceline.config import parse_flags
from paceline.errors import ConfigError

PORTS = ("--port", "--round-port", "--metrics-port", "--health-port")


def parsed(*argv: str) -> DraftConfig:
    return parse_flags(DraftConfig, argv, prog="draft_service")


@pytest.mark.parametrize(("first", "second"), tuple(itertools.combinations(PORTS, 2)))
def test_two_flags_with_one_port_are_both_named(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match=f"{first} and {second} are both 7400; give each a port of its own"):
        parsed(f"{second}=7400", f"{first}=7400")


def test_ports_that_differ_or_are_left_to_the_system_are_taken() -> None:
    config = parsed("--port=0", "--round-port=0", "--metrics-port=7400", "--health-port=7401")
    assert (config.port, config.round_port, config.metrics_port, config.health_port) == (0, 0, 7400, 7401)
    with pytest.raises(ConfigError, match="--port and --round-port are both 7300"):
        parsed("--round-port=7300")


def test_a_draft_without_a_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="--speculative-draft-model-path is empty; it must be the folder of"):
        parsed("--speculative-draft-model-path=")
