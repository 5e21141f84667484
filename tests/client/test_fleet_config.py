"""FleetConfig: what a launcher refuses before it starts anything."""

from __future__ import annotations

import pytest

from client.launcher_config import FleetConfig
from paceline.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"num_targets": 0}, "--targets"),
        ({"num_drafts": -1}, "--drafts"),
        ({"router_port": 70000}, "--port"),
        (
            {"router_flags": ("--port", "7000")},
            "--router-args has --port, .*: name the router's with --port itself",
        ),
        ({"target_flags": ("--port=7000",)}, "--target-args has --port=7000, .*: each takes a free one"),
        ({"draft_flags": ("--dtype", "float32", "--port", "1")}, "--draft-args has --port"),
        ({"router_flags": ("--targets=a:1",)}, "--router-args has --targets=a:1, .*; --targets itself says how many"),
        ({"target_flags": ("--tp-size", "3")}, "--target-args has --tp-size, .*: --tp-size itself"),
        ({"target_flags": ("--base-gpu-id=1",)}, "--target-args has --base-gpu-id=1, .*--target-devices"),
        ({"draft_flags": ("--device=cpu",)}, "--draft-args has --device=cpu, .*--draft-devices"),
        ({"draft_flags": ("--tls-cert=x",)}, "--draft-args has --tls-cert=x, .*: --tls-cert itself is for all"),
        ({"start_timeout_s": 0.0}, "--start-timeout-s is 0.0; it must be a number of seconds above 0"),
        ({"start_timeout_s": float("nan")}, "--start-timeout-s is nan"),
        ({"start_timeout_s": float("inf")}, "--start-timeout-s is inf"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_by_its_flag(values, flag):
    with pytest.raises(ConfigError, match=flag):
        FleetConfig(**values)


@pytest.mark.parametrize(
    ("service", "text", "key", "rule"),
    [
        ("router", "port = 7000", "port", "name the router's with --port itself"),
        ("router", 'drafts = ["a:1"]', "drafts", "it gets those that are started; --drafts itself says how many"),
        ("target", "page-size = 32\nport = 7000", "port", "each takes a free one"),
        ("target", "tp_size = 2", "tp_size", "--tp-size itself is for all targets"),
        ("draft", "device = 'cpu'", "device", "name devices with --device, --target-devices or --draft-devices"),
        ("target", "num-threads = 7", "num-threads", "serve gives each its own; name --num-threads among"),
        ("draft", "dtype = 'float32'", "dtype", "serve gives each its own; name --dtype among --draft-args itself"),
        ("router", "drain_timeout_s = 60", "drain_timeout_s", "serve gives each its own; name --drain-timeout-s among"),
    ],
)
def test_a_key_in_a_services_file_is_refused_as_the_flag_is(tmp_path, service, text, key, rule):
    file = tmp_path / "its.toml"
    file.write_text(text)
    words = rf"^--{service}-args has --config {file} with '{key}', which is not named there: {rule}"
    for flags in (("--config", str(file)), (f"--config={file}", "--log-format", "json")):
        with pytest.raises(ConfigError, match=words):
            FleetConfig(**{f"{service}_flags": flags})


def test_a_file_of_a_services_own_flags_is_left_to_the_service(tmp_path):
    (tmp_path / "page-size").write_text("32\n")
    flags = ("--config", str(tmp_path))
    assert FleetConfig(target_flags=flags).flags_of_target()[-2:] == [*flags]


def test_a_services_file_that_is_not_there_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"^--draft-args: --config: \S+ is not there; name a TOML file"):
        FleetConfig(draft_flags=("--config", str(tmp_path / "none.toml")))


@pytest.mark.parametrize(
    ("flags", "drain_s"),
    [
        ((), 10.0),
        (("--drain-timeout-s", "60"), 60.0),
        (("--policy", "off", "--drain-timeout-s=0.5"), 0.5),
        (("--drain-timeout-s", "soon"), 10.0),
    ],
)
def test_running_answers_get_what_the_router_is_told(flags, drain_s):
    assert FleetConfig(router_flags=flags).drain_timeout_s == drain_s
