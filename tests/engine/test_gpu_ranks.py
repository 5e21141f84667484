"""Ranks on GPUs of their own, over NCCL and symmetric memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.device import rank_devices
from paceline.errors import ConfigError

RANK = Path(__file__).with_name("gpu_rank.py")
ROOT = Path(__file__).parents[2]
LIMIT_S = 120


def visible_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_sums_and_gathers_are_right_and_the_same_bits_on_every_rank_eager_and_captured(tmp_path: Path) -> None:
    init_method = (tmp_path / "ranks").as_uri()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen([sys.executable, RANK, str(rank), "2", init_method], env=environment, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        assert [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks] == [b"checked\n"] * 2
    finally:
        for rank in ranks:
            rank.kill()


def test_every_rank_gets_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    visible_gpus(monkeypatch, 4)
    assert rank_devices("cuda", tp_size=2) == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert rank_devices("cuda", base_gpu_id=2, tp_size=2) == [torch.device("cuda:2"), torch.device("cuda:3")]
    assert rank_devices("cuda:3") == [torch.device("cuda:3")]
    assert rank_devices("auto") == [torch.device("cuda:0")]
    assert rank_devices("cpu", tp_size=2) == [torch.device("cpu")] * 2


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    visible_gpus(monkeypatch, 0)
    assert rank_devices("auto") == [torch.device("cpu")]


@pytest.mark.parametrize(
    ("num_gpus", "device", "more", "message"),
    [
        (0, "cuda", {}, r"--device is cuda, but torch .* sees no GPU; use --device cpu"),
        (2, "cuda", {"tp_size": 4}, r"--tp-size 4 takes GPUs 0 to 3, but there are 2: 0 to 1; lower --tp-size"),
        (2, "cuda", {"base_gpu_id": 1, "tp_size": 2}, r"takes GPUs 1 to 2, but there are 2"),
        (2, "cuda:2", {}, r"--device cuda:2 .* takes GPU 2, but there are 2: 0 to 1"),
        (4, "cuda:1", {"tp_size": 2}, r"GPUs 1 to 2 write --device cuda --base-gpu-id 1"),
        (4, "cpu", {"base_gpu_id": 1}, r"--base-gpu-id is 1, but --device cpu is no GPU"),
        (4, "gpu", {}, r"--device gpu is no device; it must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_gpus_that_are_not_there_are_refused_by_their_flags(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, device: str, more: dict[str, int], message: str
) -> None:
    visible_gpus(monkeypatch, num_gpus)
    with pytest.raises(ConfigError, match=message):
        rank_devices(device, **more)
