"""Generates paceline/v1/ from protos/, or checks that it is what the protos say.

    python scripts/gen_protos.py           writes what differs
    python scripts/gen_protos.py --check   writes nothing, exits 1 when something differs

Standard library only. The generators live in .venv-protos, made on first use, because their pins would hold the
runtime at protobuf 5 and at the grpcio companions of 1.71. They run on protobuf 5.29 and so does their output, which
protobuf 6 and 7 load too; output of later generators would not load on 5.29.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

GENERATORS = ("grpcio-tools==1.71.2", "protobuf==5.29.6", "mypy-protobuf==3.7.0")
PACKAGE = Path("paceline/v1")


def generate(root: Path, out: Path) -> None:
    """Writes the modules and stubs of all protos under root to out. Raises CalledProcessError."""
    bin_dir = _generator_venv(root / ".venv-protos")
    protos = sorted(str(path.relative_to(root / "protos")) for path in (root / "protos" / PACKAGE).glob("*.proto"))
    command = [
        str(bin_dir / "python"),
        *("-m", "grpc_tools.protoc", f"--plugin=protoc-gen-mypy_grpc={bin_dir / 'protoc-gen-mypy_grpc'}"),
        *(f"-I{root / 'protos'}", f"--python_out={out}", f"--pyi_out={out}"),
        *(f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"),
    ]
    subprocess.run([*command, *protos], check=True)


def differences(generated: Path, committed: Path) -> list[str]:
    """Names of generated files that are missing, stale or different in committed."""
    fresh = {path.name for path in generated.iterdir()}
    present = {path.name for path in committed.glob("*_pb2*.py*")}
    same, _, _ = filecmp.cmpfiles(generated, committed, sorted(fresh & present), shallow=False)
    return sorted((fresh | present) - set(same))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generate paceline/v1 from protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something differs")
    check = parser.parse_args(argv).check
    root = Path(__file__).resolve().parent.parent
    committed = root / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(root, Path(scratch))
        generated = Path(scratch) / PACKAGE
        changed = differences(generated, committed)
        if check:
            for name in changed:
                print(f"{PACKAGE / name} is not what the protos say; run make protos and commit it", file=sys.stderr)
            return 1 if changed else 0
        for name in changed:
            _replace(committed / name, generated / name)
            print(PACKAGE / name)
    return 0


def _generator_venv(path: Path) -> Path:
    bin_dir = path / "bin"
    stamp = path / "generators"
    wanted = "\n".join(GENERATORS)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(path, clear=True, with_pip=True)
        command = [str(bin_dir / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*command, *GENERATORS], check=True)
        stamp.write_text(wanted)
    return bin_dir


def _replace(path: Path, generated: Path) -> None:
    if generated.exists():
        path.write_bytes(generated.read_bytes())
    else:
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
