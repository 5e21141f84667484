"""The daemon through which services share a GPU, with a program in its place that writes down what it is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client.mps import MpsDaemon
from paceline.errors import ConfigError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nvidia-cuda-mps-control on the PATH."""
    path = tmp_path / "nvidia-cuda-mps-control"
    path.write_text(f'#!/bin/sh\necho "$* $(cat) $CUDA_MPS_PIPE_DIRECTORY$CUDA_VISIBLE_DEVICES" >> {tmp_path}/told\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    return path


def test_a_daemon_has_a_folder_of_its_own_and_ends_with_the_fleet(program):
    daemon = MpsDaemon()
    daemon.start()
    folder = daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert os.path.isdir(folder)
    daemon.stop()
    daemon.stop()
    assert (program.parent / "told").read_text().splitlines() == [f"-d  {folder}", f" quit {folder}"]
    assert not os.path.exists(folder)


def test_a_daemon_that_does_not_start_says_what_it_said(program):
    program.write_text("#!/bin/sh\necho 'An instance of this daemon is already running'\nexit 1\n")
    daemon = MpsDaemon()
    with pytest.raises(ConfigError, match=r"--mps: .* does not start: An instance of this daemon is already running"):
        daemon.start()
    assert not os.path.exists(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"])


def test_a_daemon_that_does_not_quit_is_named_once_and_keeps_its_folder(program, caplog):
    program.write_text("#!/bin/sh\n[ $# -eq 1 ] || { echo 'clients are running'; exit 1; }\n")
    daemon = MpsDaemon()
    daemon.start()
    folder = daemon.environment["CUDA_MPS_PIPE_DIRECTORY"]
    daemon.stop()
    daemon.stop()
    by_hand = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={folder} nvidia-cuda-mps-control"
    (warning,) = caplog.messages
    assert warning == f"--mps: the daemon does not quit: clients are running; end it by hand: {by_hand}"
    os.rmdir(folder)


def test_a_program_that_does_not_answer_is_given_up(program):
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    daemon = MpsDaemon(answer_s=0.1)
    with pytest.raises(ConfigError, match=r"does not start: no answer for 0\.1 s"):
        daemon.start()
    assert not os.path.exists(daemon.environment["CUDA_MPS_PIPE_DIRECTORY"])


def test_without_the_program_the_flag_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--mps is set, but nvidia-cuda-mps-control is not on the PATH"):
        MpsDaemon()
