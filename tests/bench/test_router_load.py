"""The router's bench: its report, its flags, and a real run before a target on a clock."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from bench.router_load import RouterLoadConfig, main
from bench.router_report import first_token_report, first_token_table, table, variants_report
from bench.router_runs import LoadFigures
from bench.step_clock import StepClock
from paceline.errors import ConfigError

SMALL = ["--streams", "3", "--requests", "6", "--max-tokens", "8", "--repeat", "1", "--first-token-requests", "4"]


def run(*, tokens_per_s: float, cpu_s: float) -> LoadFigures:
    return LoadFigures(
        2.0, tokens_per_s, num_messages=100, num_tokens=400, cpu_s=cpu_s, client_busy=0.5, first_token_ms=9.0
    )


def test_a_variant_is_compared_with_plain_run_by_run():
    plain = [run(tokens_per_s=100.0, cpu_s=0.1), run(tokens_per_s=200.0, cpu_s=0.1), run(tokens_per_s=50.0, cpu_s=0.1)]
    mtls = [run(tokens_per_s=90.0, cpu_s=0.2), run(tokens_per_s=160.0, cpu_s=0.2), run(tokens_per_s=35.0, cpu_s=0.2)]
    first, second = variants_report({"plain": plain, "mtls": mtls})
    assert first["of_plain"]["tokens_per_s"] == 1.0
    assert second["of_plain"]["tokens_per_s"] == pytest.approx(0.8)
    assert second["medians"]["tokens_per_s"] == 90.0
    assert second["medians"]["cpu_us_per_message"] == pytest.approx(2000.0)
    assert second["medians"]["cpu_us_per_token"] == pytest.approx(500.0)
    cells = [cell.strip() for cell in table([first, second]).splitlines()[-1].split("|")[1:-1]]
    assert cells == ["mtls", "90", "0.800", "50", "0.10", "2000.0", "500.0", "2.000", "9.00", "0.50"]


def test_a_cpu_time_below_the_clocks_tick_is_compared_with_nothing():
    (report,) = variants_report({"plain": [run(tokens_per_s=100.0, cpu_s=0.0)]})
    assert "cpu_us_per_token" not in report["of_plain"] and report["of_plain"]["tokens_per_s"] == 1.0
    assert "| plain | 100 | 1.000 | 50 | 0.00 | 0.0 | 0.0 |  | 9.00 |" in table([report])


def test_what_a_router_adds_to_a_first_token_is_above_the_median_of_clients_at_the_target():
    direct, plain = first_token_report({"direct": [1.0, 2.0, 3.0], "plain": [2.0, 2.5, 9.0]})
    assert direct["above_direct_ms"] == 0.0 and plain["above_direct_ms"] == 0.5
    assert first_token_table([direct, plain]).splitlines()[-1].endswith("| 0.50 |")
    assert first_token_report({"plain": [2.0]})[0]["above_direct_ms"] is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--variants", "plain,fast"],
        ["--step-ms", "soon"],
        ["--stream-intervals", "x"],
        ["--with-model", "--variants", "direct"],
    ],
)
def test_bad_flags_are_named(flags):
    with pytest.raises(ConfigError, match=flags[-2].removeprefix("--").split("-")[0]):
        main(flags)


def test_with_a_model_clients_always_go_through_a_router():
    assert RouterLoadConfig(with_model=True).names == ("plain", "observed", "mtls")


class CountedClock(StepClock):
    num_steps = 0

    def _fire(self) -> None:
        self.num_steps += 1
        super()._fire()


async def test_all_that_wait_share_a_step_and_steps_keep_their_rate():
    num_steps, step_s = 20, 0.002
    clock = CountedClock(step_s)

    async def steps() -> None:
        for _ in range(num_steps):
            await clock.next_step()

    began_s = time.monotonic()
    await asyncio.gather(steps(), steps())
    assert time.monotonic() - began_s >= (num_steps - 1) * step_s * 0.9
    assert clock.num_steps == num_steps


@pytest.mark.slow
def test_every_variant_runs_before_a_target_on_a_clock(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main([*SMALL, "--step-ms", "2", "--stream-intervals", "1", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    (group,) = document["groups"]
    assert [variant["variant"] for variant in group["variants"]] == ["direct", "plain", "observed", "mtls"]
    assert all(variant["medians"]["tokens_per_s"] > 0 for variant in group["variants"])
    for variant in document["first_tokens"]:
        assert variant["requests"] == 4
        assert 0 < variant["p50_ms"] < 1000
    assert capsys.readouterr().out.count("| mtls | ") == 2
