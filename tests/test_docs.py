"""The documents name files, overlays, commands and flags that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.simulate import SimulateConfig
from client.commands.doctor import DoctorConfig
from client.commands.serve import ServeConfig
from client.commands.table import COMMANDS
from paceline.config import build_parser
from tests.support.manifests import CONFIGS, OVERLAYS

ROOT = Path(__file__).resolve().parent.parent
OPERATIONS = ["deploy", "scale", "upgrade", "observe", "secure", "troubleshoot"]
# Flags of kubectl, docker, grpcurl and pytest in the commands.
OF_OTHERS = {
    "target",
    "build-arg",
    "timeout",
    "for",
    "type",
    "replicas",
    "watch",
    "raw",
    "previous",
    "from-file",
    "dry-run",
}


def text_of(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_readme_leads_to_the_document_and_its_links_lead_somewhere(name: str) -> None:
    assert f"docs/{name}.md" in (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text_of(name)):
        assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize("name", OPERATIONS)
def test_paths_and_commands_in_a_document_exist(name: str) -> None:
    text = text_of(name)
    for path in re.findall(r"\b(?:k8s|docker|scripts|tests)/[\w./-]*\w", text):
        assert (ROOT / path).exists() or path == "k8s/overlays/mine", path
    for command in re.findall(
        r"^(?:\.venv/bin/)?paceline ([\w-]+)|-- paceline ([\w-]+)|`paceline ([\w-]+)", text, re.MULTILINE
    ):
        assert "".join(command) in COMMANDS, command


@pytest.mark.parametrize("name", OPERATIONS)
def test_flags_in_a_document_exist(name: str) -> None:
    configs = (*CONFIGS.values(), DoctorConfig, ServeConfig, SimulateConfig)
    parsers = [build_parser(config, prog="any") for config in configs]
    known = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    for flag in re.findall(r"--([a-z][a-z-]*[a-z])", text_of(name)):
        assert f"--{flag}" in known or flag in OF_OTHERS or flag == "config", flag


def test_the_overlays_are_all_described() -> None:
    described = re.findall(r"^\| `([\w-]+)` \|", text_of("deploy"), re.MULTILINE)
    assert sorted(described) == OVERLAYS
