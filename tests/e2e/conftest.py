"""Real services as processes on loopback, and transformers as the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from client.client import PacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from tests.support.services import PATIENT, ROOT, WAIT_S, Oracle


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """The default set, shortest first."""
    lines = (ROOT / "bench/prompts.jsonl").read_text().splitlines()
    return sorted((json.loads(line)["prompt"] for line in lines if line.strip()), key=len)


@pytest.fixture(scope="session")
def fp32_fleet() -> Iterator[Fleet]:
    """One router, one draft, one target; fp32."""
    with Fleet(FleetConfig(dtype="float32", target_flags=PATIENT)) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def bf16_fleet() -> Iterator[Fleet]:
    """One router, one draft, one target; bfloat16."""
    with Fleet(FleetConfig(dtype="bfloat16", target_flags=PATIENT)) as fleet:
        yield fleet


@pytest.fixture
def fp32_client(fp32_fleet: Fleet) -> Iterator[PacelineClient]:
    with PacelineClient(fp32_fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield client
