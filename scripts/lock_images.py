"""Writes docker/*.txt: the exact versions of all that pip installs into the images.

``python scripts/lock_images.py``, with the interpreter version that the Dockerfile names, on Linux x86-64: resolves
without installing, and needs the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch===2.13.0"  # exactly: an index may have it with a suffix for the CPU, too
# What torch's CUDA build needs beside itself, and its CPU build does not.
CUDA_ONLY = ("cuda-", "nvidia-", "triton")
HEAD = "# Made by scripts/lock_images.py; do not edit.\n"


def resolve(extra: str, *pins: str) -> dict[str, str]:
    """Versions by name, of the project with this extra and all below it, the project itself left out."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), f"{ROOT}{extra}", *pins], check=True)
        installed = json.loads(report.read_text())["install"]
    versions = {
        entry["metadata"]["name"].lower().replace("_", "-"): entry["metadata"]["version"] for entry in installed
    }
    del versions["paceline"]
    return versions


def write(name: str, versions: dict[str, str]) -> None:
    lines = [f"{package}=={version}\n" for package, version in sorted(versions.items())]
    (ROOT / "docker" / name).write_text(HEAD + "".join(lines))


def main() -> None:
    write("router.txt", resolve("[otel]"))
    engine = resolve("[engine,otel]", TORCH)
    write("engine-cuda.txt", engine)
    # torch's CPU build has a version suffix of its own and comes from another index: the Dockerfile names both.
    kept = {name: version for name, version in engine.items() if not name.startswith(CUDA_ONLY) and name != "torch"}
    write("engine-cpu.txt", kept)


if __name__ == "__main__":
    main()
