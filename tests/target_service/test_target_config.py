"""Flags and files that do not fit are refused before anything runs, by name."""

import pytest
import torch
from prometheus_client import CollectorRegistry

from engine.memory import MemoryNeeds, Room, find_room
from paceline.config import parse_flags, to_argv
from paceline.errors import ConfigError, ModelLoadError
from target_service.capacity import CPU_POOL_BYTES, choose_pages, pool_flags
from target_service.config import TargetConfig
from target_service.loading import check_model
from target_service.service import LoadedTarget


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--page-size=0", "--page-size is 0; it must be at least 1"),
        ("--tp-size=0", "--tp-size is 0"),
        ("--base-gpu-id=-1", "--base-gpu-id is -1"),
        ("--no-such-flag", "--no-such-flag"),
        ("--mem-fraction-static=1.5", "--mem-fraction-static is 1.5; it must be above 0, at most 1"),
        ("--mem-fraction-static=nan", "--mem-fraction-static is nan"),
        ("--dtype=int8", "int8"),
        ("--max-total-tokens=0", "--max-total-tokens is 0"),
        ("--max-rows-per-step=4", "--max-rows-per-step is 4; it must be at least 512"),
        ("--speculative-tree-deadline-ms=-1", "--speculative-tree-deadline-ms is -1"),
        ("--busy-wait-ms=inf", "--busy-wait-ms is inf; it must be 0 to 1000"),
        ("--port=99999", "--port is 99999"),
        ("--health-port=7200", "--port and --health-port are both 7200"),
        (
            "--otlp-traces-endpoint=grpc:/x",
            "--otlp-traces-endpoint is grpc:/x; it must be a URL like http://HOST:4318/v1/traces",
        ),
    ],
)
def test_a_flag_out_of_its_range_is_refused(flag, message):
    with pytest.raises(ConfigError) as caught:
        parse_flags(TargetConfig, [flag], prog="target_service")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_flags_survive_the_way_to_another_process(tiny_target):
    config = tiny_target.config(tp_size=2, speculative_draft_model_path="", speculative_tree_deadline_ms=7.5)
    assert parse_flags(TargetConfig, to_argv(config), prog="target_service") == config


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_path": "/nowhere"}, ModelLoadError, "/nowhere"),
        ({"speculative_draft_model_path": "/nowhere"}, ModelLoadError, "/nowhere"),
        ({"tp_size": 3}, ConfigError, "tp size 3 does not divide 4 heads and 2 KV heads"),
        ({"context_length": 1000}, ConfigError, "--context-length is 1000; the model has positions for 256"),
        ({"device": "abacus"}, ConfigError, "--device abacus"),
        ({"base_gpu_id": 1}, ConfigError, "--base-gpu-id is 1, but --device cpu is no GPU"),
        ({"kernel_backend": "flashinfer"}, ConfigError, "--device cpu, --kernel-backend flashinfer"),
    ],
    ids=["model", "head", "tp", "context", "device", "gpu", "backend"],
)
def test_what_does_not_fit_the_model_is_refused_before_a_rank_starts(tiny_target, changes, error, message):
    with pytest.raises(error) as caught:
        check_model(tiny_target.config(**changes))
    assert message in str(caught.value)


def test_too_few_pages_are_refused(tiny_target):
    with pytest.raises(ConfigError, match="4 KV pages of 4 tokens do not hold one request, which takes 17"):
        LoadedTarget.load(tiny_target.config(max_total_tokens=16), init_method="", registry=CollectorRegistry())


def room_on_cpu(config: TargetConfig, needs: MemoryNeeds) -> Room:
    return find_room(torch.device("cpu"), pool_flags(config), needs, cpu_limit=CPU_POOL_BYTES, num_ranks=config.tp_size)


def test_more_tokens_than_memory_are_refused(tiny_target):
    config = tiny_target.config(max_total_tokens=1 << 30)
    room = room_on_cpu(config, MemoryNeeds(0, 1 << 20))
    with pytest.raises(ConfigError, match=r"--max-total-tokens 1073741824 takes .* GiB are available; lower it"):
        choose_pages(config, room, context_length=256, bytes_per_token=1 << 20)


def test_the_pool_is_no_larger_than_its_requests_can_use(tiny_target):
    config = tiny_target.config(max_total_tokens=None)
    room = room_on_cpu(config, MemoryNeeds(0, 1000))
    assert choose_pages(config, room, context_length=256, bytes_per_token=1000) == 8 * 80


def test_a_target_without_a_head_decodes_plainly(tiny_target):
    target = LoadedTarget.load(
        tiny_target.config(speculative_draft_model_path=""), init_method="", registry=CollectorRegistry()
    )
    assert (target.info.feature_size, target.info.feature_id, target.info.head_fingerprint) == (0, "", "")
