"""Which GPU the launcher gives to which service."""

from __future__ import annotations

import pytest

from client.commands.fleet_flags import FleetFlags
from client.placement import DeviceFlags, FleetSize, place
from paceline.config import parse_flags
from paceline.errors import ConfigError


def placed(num_targets: int, num_drafts: int, *, num_gpus: int, tp_size: int = 1, **flags: object) -> tuple[list, list]:
    placement = place(FleetSize(num_targets, num_drafts, tp_size), DeviceFlags(**flags), num_gpus=num_gpus)
    return [" ".join(part) for part in placement.targets], [" ".join(part) for part in placement.drafts]


def test_without_a_gpu_all_run_on_the_cpu() -> None:
    assert placed(1, 2, num_gpus=0, tp_size=3) == (["--device cpu"], ["--device cpu"] * 2)


def test_the_cpu_can_be_chosen_beside_gpus() -> None:
    assert placed(1, 1, num_gpus=2, device="cpu") == (["--device cpu"], ["--device cpu"])


@pytest.mark.parametrize(("num_gpus", "draft"), [(1, 0), (2, 1), (4, 1)])
def test_the_draft_takes_the_next_gpu_where_there_is_one(num_gpus: int, draft: int) -> None:
    assert placed(1, 1, num_gpus=num_gpus) == (["--device cuda:0"], [f"--device cuda:{draft}"])


def test_a_target_over_all_gpus_shares_the_last_with_the_draft() -> None:
    targets, drafts = placed(1, 1, num_gpus=2, tp_size=2)
    assert targets == ["--device cuda --base-gpu-id 0"]
    assert drafts == ["--device cuda:1"]


def test_targets_get_gpus_of_their_own_and_drafts_take_turns_on_the_rest() -> None:
    targets, drafts = placed(2, 3, num_gpus=6, tp_size=2)
    assert targets == ["--device cuda --base-gpu-id 0", "--device cuda --base-gpu-id 2"]
    assert drafts == ["--device cuda:4", "--device cuda:5", "--device cuda:4"]


def test_targets_share_gpus_where_there_are_too_few() -> None:
    assert placed(3, 1, num_gpus=2) == (["--device cuda:0", "--device cuda:1", "--device cuda:0"], ["--device cuda:1"])


def test_lists_of_devices_go_before_the_rule() -> None:
    flags = {"target_devices": ("cuda:1", "cuda:0"), "draft_devices": ("cpu",)}
    targets, drafts = placed(2, 1, num_gpus=2, **flags)
    assert targets == ["--device cuda:1", "--device cuda:0"]
    assert drafts == ["--device cpu"]


def test_a_draft_keeps_off_the_gpus_that_a_list_gives_to_targets() -> None:
    assert placed(1, 1, num_gpus=2, target_devices=("cuda:1",))[1] == ["--device cuda:0"]


def test_too_few_gpus_for_a_target_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--tp-size is 4, but this machine has 2 GPU"):
        placed(1, 0, num_gpus=2, tp_size=4)
    with pytest.raises(ConfigError, match="--device is cuda, but CUDA finds no GPU on this machine; use --device cpu"):
        placed(1, 0, num_gpus=0, device="cuda")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target-devices", "cuda:0,gpu1"], "--target-devices is gpu1; it must be cpu or cuda:N"),
        (["--draft-devices", "cuda"], "--draft-devices is cuda; it must be"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_a_device_that_is_none_is_refused_by_its_flag(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flags(FleetFlags, flags, prog="paceline serve").fleet(dtype="float32")
    assert message in str(caught.value)
