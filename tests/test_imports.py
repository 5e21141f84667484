"""The import table of the design: which room may import which, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "paceline": set(),
    "kernels": set(),
    "engine": {"kernels", "paceline"},
    "draft_service": {"engine", "kernels", "paceline"},
    "target_service": {"engine", "kernels", "paceline"},
    "router": {"paceline"},
    "client": {"paceline"},
    "training": {"engine", "kernels", "paceline"},
    "bench": {"client", "kernels", "paceline"},  # kernels: each tuning constant of one has a command here
}
# Of bench, beside what its room may import:
RUN_THE_ENGINE = ("inflat*", "in_process", "cpu_step", "gpu_all_reduce", "gpu_draft", "gpu_step", "plan_ring")
RUN_A_SERVICE = ("host_*",)  # and the engine
RUN_THE_POLICY = ("simulat*",)  # the router's own, and the rules of a target that need no engine
TORCHLESS = ("paceline", "router", "client")
GENERATED_BELONGS_IN = ("codec", "servicer", "link")  # in the file's name; the client may use it anywhere


def imports(path: Path) -> set[str]:
    """Full names that a file imports, at any depth; a name taken from a module counts as the module's child."""
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            here = path.relative_to(ROOT).with_suffix("").parts
            base = ".".join(here[: -node.level]) + "." if node.level else ""
            names |= {f"{base}{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def refuse(room: str, is_wrong: Callable[[Path, str], bool]) -> None:
    """Fails with a line for each import in the room's hand-written files that is_wrong."""
    paths = [path for path in sorted((ROOT / room).rglob("*.py")) if not path.is_relative_to(ROOT / "paceline/v1")]
    wrong = [(path, name) for path in paths for name in sorted(imports(path)) if is_wrong(path, name)]
    assert not wrong, "\n".join(f"{path.relative_to(ROOT)} imports {name}" for path, name in wrong)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    def is_wrong(path: Path, name: str) -> bool:
        runs_engine = any(path.match(f"bench/{name}.py") for name in RUN_THE_ENGINE + RUN_A_SERVICE)
        runs_service = any(path.match(f"bench/{name}.py") for name in RUN_A_SERVICE)
        runs_policy = any(path.match(f"bench/{name}.py") for name in RUN_THE_POLICY)
        also = ({"engine"} if runs_engine else set()) | ({"draft_service", "target_service"} if runs_service else set())
        also |= {"router", "target_service"} if runs_policy else set()
        forbidden = MAY_IMPORT.keys() - MAY_IMPORT[room] - {room} - also
        return name.partition(".")[0] in forbidden

    refuse(room, is_wrong)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_torch_and_transformers_stay_out_of_rooms_that_do_without(room: str) -> None:
    forbidden = {"transformers"} | ({"torch", "triton", "safetensors", "gguf"} if room in TORCHLESS else set())
    refuse(room, lambda _, name: name.partition(".")[0] in forbidden)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT.keys() - {"client"}))
def test_generated_names_stay_in_codecs_servicers_and_links(room: str) -> None:
    def is_wrong(path: Path, name: str) -> bool:
        return name.startswith("paceline.v1") and not any(word in path.stem for word in GENERATED_BELONGS_IN)

    refuse(room, is_wrong)


def test_every_package_is_listed_for_the_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    present = {path.parent.relative_to(ROOT) for room in MAY_IMPORT for path in (ROOT / room).rglob("__init__.py")}
    assert project["tool"]["setuptools"]["packages"] == sorted(".".join(folder.parts) for folder in present)


@pytest.mark.parametrize("service", ["draft_service", "target_service"])
def test_a_service_imports_torch_after_it_set_the_threads_that_torch_reads_once(service: str) -> None:
    code = f"import sys, {service}.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
