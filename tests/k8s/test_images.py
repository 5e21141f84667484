"""The Dockerfile and what it installs, without a daemon to build it: read, linted, and held against the project."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from paceline.config import parse_flags
from tests.support.manifests import CONFIGS, PROGRAMS, ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LISTS = {"router.txt": ["otel"], "engine-cpu.txt": ["engine", "otel"], "engine-cuda.txt": ["engine", "otel"]}
# What runs in the images of a list, and what these rooms import only where it is there.
ROOMS = {
    "router.txt": {"client", "paceline", "router"},
    "engine-cpu.txt": {"draft_service", "engine", "kernels", "paceline", "target_service"},
    "engine-cuda.txt": {"draft_service", "engine", "kernels", "paceline", "target_service"},
}
WITHOUT = {"router.txt": set(), "engine-cpu.txt": {"flashinfer", "triton"}, "engine-cuda.txt": {"flashinfer"}}
PORTS = {"router": "7100", "draft": "7300", "target": "7200"}


def stages() -> dict[str, tuple[str, list[str]]]:
    """Of each stage what it begins with and its instructions, continuation lines joined."""
    found: dict[str, tuple[str, list[str]]] = {}
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    for line in joined.splitlines():
        if begun := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            name = begun[2]
            found[name] = (begun[1], [])
        elif found and line and not line.startswith("#"):
            found[name][1].append(line)
    return found


STAGES = stages()


def ancestry(stage: str, device: str) -> list[str]:
    """The stage and those that it begins with, up to the image that is not ours."""
    names = [stage]
    while (base := STAGES[names[-1]][0].replace("${DEVICE}", device)) in STAGES:
        names.append(base)
    return names


def instructions(stage: str, device: str = "cpu") -> list[str]:
    return [line for name in ancestry(stage, device) for line in STAGES[name][1]]


def copied_from(stage: str, device: str = "cpu") -> set[str]:
    """The stages whose files end up in this one."""
    lines = instructions(stage, device)
    found = {name for line in lines for name in re.findall(r"COPY --from=(\S+)", line)}
    return found | {part for name in found for part in ancestry(name, device)}


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / "docker" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def installed(name: str) -> dict[str, str]:
    """What a list brings, and torch, which the Dockerfile installs beside the CPU's list."""
    (version,) = re.findall(r"^ARG TORCH_VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)
    return locked(name) | ({"torch": version} if name == "engine-cpu.txt" else {})


def third_party(room: str) -> set[str]:
    """The packages of others that a room's files import, at any depth; ``google.protobuf`` in full."""
    found = set()
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {".".join(name.split(".")[: 2 if name.startswith("google.") else 1]) for name in names}
    ours = {path.name for path in ROOT.iterdir() if path.is_dir()}
    return found - ours - set(sys.stdlib_module_names) - {"google"}


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert hadolint, "no hadolint: make setup installs it into .venv"
    done = subprocess.run(
        [hadolint, "--format", "json", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout) == [], done.stderr


def test_there_is_an_image_for_each_service_and_the_default_models_fetch() -> None:
    assert {*PROGRAMS, "fetch"} <= STAGES.keys()


@pytest.mark.parametrize("service", PROGRAMS)
def test_an_image_runs_its_service_as_a_numbered_user_on_its_port(service: str) -> None:
    own = STAGES[service][1]
    assert [line for line in own if line.startswith("USER")] == ["USER 10001:10001"]
    assert f'ENTRYPOINT ["python", "-m", "{PROGRAMS[service]}"]' in own
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in own if line.startswith("CMD")]
    config = parse_flags(CONFIGS[service], command, prog=service)
    (exposed,) = [line.split()[1:] for line in own if line.startswith("EXPOSE")]
    rounds = [str(config.round_port)] if service == "draft" else []
    assert exposed == [str(config.port), *rounds, str(config.metrics_port)]
    assert [str(config.port), str(config.metrics_port)] == [PORTS[service], "9090"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("service", PROGRAMS)
def test_no_services_image_holds_a_model_or_a_compiler_that_it_does_not_need(service: str, device: str) -> None:
    lines = instructions(service, device)
    assert not [line for line in lines if line.startswith("COPY") and "models" in line]
    has_compiler = any("gcc" in line for line in lines)
    assert has_compiler == (device == "cuda" and service != "router")


def test_the_routers_image_has_no_torch_on_any_device() -> None:
    for device in ("cpu", "cuda"):
        assert not {name for name in copied_from("router", device) if name.startswith("engine")}
    assert not {"torch", "triton", "safetensors", "gguf"} & locked("router.txt").keys()


def test_draft_and_target_get_the_engine_of_the_device_that_was_asked_for() -> None:
    for service in ("draft", "target"):
        assert {"engine", "engine-cuda"} <= copied_from(service, "cuda")
        assert "engine-cuda" not in copied_from(service, "cpu")
    assert {"torch", "triton", "nvidia-nccl-cu13"} <= locked("engine-cuda.txt").keys()
    assert not [name for name in locked("engine-cpu.txt") if name.startswith(("nvidia-", "cuda-", "torch"))]


def test_everything_is_pinned_and_fits_what_the_project_asks_for() -> None:
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert re.fullmatch(r"3\.\d+\.\d+", arguments["PYTHON_VERSION"])
    assert STAGES["python"][0] == "python:${PYTHON_VERSION}-slim-bookworm"
    extras = PROJECT["optional-dependencies"]
    for name, of_image in LISTS.items():
        for text in [*PROJECT["dependencies"], *(entry for extra in of_image for entry in extras[extra])]:
            need = Requirement(text)
            assert need.specifier.contains(installed(name)[canonicalize_name(need.name)]), (name, text)
    assert locked("engine-cuda.txt")["torch"] == arguments["TORCH_VERSION"]
    for command in re.findall(r"pip install [^&\n]*", re.sub(r"\\\n\s*", "", DOCKERFILE)):
        assert "-r " in command or "/wheels/" in command or "==" in command, command


@pytest.mark.parametrize("name", LISTS)
def test_an_image_has_every_package_that_its_programs_import(name: str) -> None:
    provided = importlib.metadata.packages_distributions() | {"google.protobuf": ["protobuf"]}
    for module in set().union(*(third_party(room) for room in ROOMS[name])) - WITHOUT[name]:
        assert {canonicalize_name(found) for found in provided[module]} & installed(name).keys(), module


@pytest.mark.parametrize("name", LISTS)
def test_an_image_has_what_its_packages_need(name: str) -> None:
    known = {canonicalize_name(found.name): found for found in importlib.metadata.distributions()}
    for package in locked(name).keys() & known.keys():
        for need in map(Requirement, known[package].requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in installed(name), f"{package} needs {need}"


def test_every_package_of_the_project_is_copied_into_the_build() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    rooms = {name.partition(".")[0] for name in tomllib.loads(text)["tool"]["setuptools"]["packages"]}
    copied = {line.split()[1] for line in STAGES["wheel"][1] if line.startswith("COPY")}
    assert rooms <= copied


def test_the_build_context_holds_what_is_copied_and_no_weights() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        part.partition("/")[0]
        for _, own in STAGES.values()
        for line in own
        if line.startswith("COPY ") and "--from" not in line
        for part in [word for word in line.split()[1:-1] if not word.startswith("--")]
    }
    assert copied == let_in
    assert "models/**/*.gguf" in lines


def test_manifests_and_workflows_are_tidy_yaml() -> None:
    yamllint = Path(sys.executable).parent / "yamllint"
    rules = {"extends": "default", "rules": {"document-start": "disable", "line-length": {"max": 120}}}
    command = [str(yamllint), "--strict", "-d", yaml.safe_dump(rules), str(ROOT / "k8s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
