"""Every command that the operations documents give is one that the real program takes."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.config import BenchConfig
from bench.simulate import SimulateConfig
from client.commands.api_key import ApiKeyConfig
from client.commands.chat import ChatConfig
from client.commands.demo import DemoConfig
from client.commands.doctor import DoctorConfig
from client.commands.generate import GenerateConfig
from client.commands.info import InfoConfig
from client.commands.inspect import InspectConfig
from client.commands.serve import ServeConfig
from paceline.config import build_parser, parse_flags
from tests.support.manifests import CONFIGS, OVERLAYS, PROGRAMS, of_kind

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("deploy", "scale", "upgrade", "observe", "secure", "troubleshoot")
KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
MODULES = {module: CONFIGS[service] for service, module in PROGRAMS.items()}
COMMANDS = {
    "api-key": ApiKeyConfig,
    "bench": BenchConfig,
    "chat": ChatConfig,
    "demo": DemoConfig,
    "doctor": DoctorConfig,
    "generate": GenerateConfig,
    "info": InfoConfig,
    "inspect": InspectConfig,
    "serve": ServeConfig,
    "simulate": SimulateConfig,
}
ENDS = re.compile(r"\d?>>?.*|<<.*|[|&;]+$")  # what ends a command's own words
OURS = {"kubectl", "paceline", "python"}
KINDS = {"deployment": "Deployment", "service": "Service"}


def commands(name: str) -> Iterator[list[str]]:
    """The words of each command in a document's blocks, and of each that it gives in a line."""
    text = (ROOT / f"docs/{name}.md").read_text()
    blocks = "".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    blocks = re.sub(r"\\\n\s*", " ", blocks)
    starts = r"^(?:kubectl|paceline|\.venv/bin/paceline|python -m) .*$"
    lines = re.findall(starts, blocks, re.MULTILINE) + re.findall(r"do (paceline .*?);? done", blocks)
    lines += [line for line in re.findall(r"`([^`]+)`", text) if re.match(starts, line)]
    for line in lines:
        words = shlex.split(line, comments=True)
        ends = [i for i, word in enumerate(words) if ENDS.match(word)]
        for first, end in itertools.pairwise([-1, *ends, len(words)]):
            if Path("".join(words[first + 1 : first + 2])).name in OURS:
                yield words[first + 1 : end]


ALL = [pytest.param(words, id=f"{name}: {shlex.join(words)}"[:100]) for name in DOCUMENTS for words in commands(name)]


@pytest.mark.parametrize("words", ALL)
def test_the_program_takes_the_command(words: list[str]) -> None:
    if words[0] == "kubectl":
        own, _, inside = shlex.join(words).partition(" -- ")
        assert_kubectl_takes(tuple(shlex.split(own)[1:]))
        words = shlex.split(inside)
    if words[:2] == ["python", "-m"]:
        if words[2] in MODULES:
            parse_flags(MODULES[words[2]], [argument for argument in words[3:] if argument != "--help"], prog=words[2])
        else:
            assert words[2] == "pytest" and all((ROOT / word).exists() for word in words[3:] if "/" in word)
    elif words:
        assert Path(words[0]).name == "paceline"
        assert_paceline_takes(words[1:])


def assert_paceline_takes(words: list[str]) -> None:
    name, rest = words[0], words[1:]
    if rest[:1] == ["simulate"]:
        name, rest = "simulate", rest[1:]
    given = [word.replace("HOST", "host").replace("$drafts", "1") for word in rest]
    values, others = build_parser(COMMANDS[name], prog=name).parse_known_args(given)
    assert not [word for word in others if word.startswith("-")]
    config: Any = COMMANDS[name](**vars(values))
    if isinstance(config, ServeConfig):
        fleet = config.fleet_config()
        for service in PROGRAMS:
            parse_flags(CONFIGS[service], list(getattr(fleet, f"{service}_flags")), prog=service)


@functools.cache
def assert_kubectl_takes(words: tuple[str, ...]) -> None:
    """kubectl reads all flags before it prints its help."""
    assert KUBECTL, "no kubectl: make setup installs it into .venv"
    done = subprocess.run([KUBECTL, *words, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage:" in done.stdout, done.stderr
    for kind, name in re.findall(r"\b(deployment|service)/([\w-]+)", " ".join(words)):
        assert name in {found["metadata"]["name"] for found in of_kind("production", KINDS[kind])}, name
    for overlay in re.findall(r"k8s/overlays/([\w-]+)", " ".join(words)):
        assert overlay in {*OVERLAYS, "mine"}
