"""The rendered manifests of k8s/: Kubernetes' own kustomize, as kubectl carries it, and views of what comes out."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draft_service.config import DraftConfig
from paceline.config import parse_flags
from router.config import RouterConfig
from target_service.config import TargetConfig

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = sorted(path.parent.name for path in (ROOT / "k8s/overlays").glob("*/kustomization.yaml"))
CONFIGS: dict[str, Any] = {"router": RouterConfig, "draft": DraftConfig, "target": TargetConfig}
PROGRAMS = {"router": "router", "draft": "draft_service", "target": "target_service"}
FLAGS_AT = "/etc/paceline"

Manifest = dict[str, Any]


@functools.cache
def render(overlay: str) -> tuple[Manifest, ...]:
    """All objects of k8s/overlays/OVERLAY."""
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    assert kubectl, "no kubectl: make setup installs it into .venv"
    done = subprocess.run(
        [kubectl, "kustomize", str(ROOT / "k8s/overlays" / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that makes pods of one service, and the template it makes them from."""

    overlay: str
    manifest: Manifest
    template: Manifest

    @property
    def name(self) -> str:
        return self.manifest["metadata"]["name"]

    @property
    def component(self) -> str:
        return self.template["metadata"]["labels"]["app.kubernetes.io/component"]

    @property
    def service(self) -> str:
        """router, draft or target; a worker of a LeaderWorkerSet runs the target's program, too."""
        return self.component.removesuffix("-worker")

    @property
    def is_worker(self) -> bool:
        return self.component != self.service

    @property
    def spec(self) -> Manifest:
        return self.template["spec"]

    @property
    def container(self) -> Manifest:
        """The service's own."""
        (container,) = self.spec["containers"]
        return container

    def flag_values(self) -> dict[str, str]:
        """What the ConfigMap that is mounted at FLAGS_AT holds."""
        (volume,) = [mount["name"] for mount in self.container["volumeMounts"] if mount["mountPath"] == FLAGS_AT]
        (source,) = [entry["configMap"]["name"] for entry in self.spec["volumes"] if entry["name"] == volume]
        (flags,) = [found for found in of_kind(self.overlay, "ConfigMap") if found["metadata"]["name"] == source]
        return flags["data"]

    def config(self, folder: Path) -> Any:
        """The flags as the real program reads them, from a copy of the mounted folder."""
        for name, value in self.flag_values().items():
            (folder / name).write_text(value)
        given = {
            FLAGS_AT: str(folder),
            "$(LWS_WORKER_INDEX)": str(int(self.is_worker)),
            "$(LWS_LEADER_ADDRESS)": "leader",
        }
        args = self.container["args"]
        for name, value in given.items():
            args = [argument.replace(name, value) for argument in args]
        return parse_flags(CONFIGS[self.service], args, prog=PROGRAMS[self.service])


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in render(overlay) if manifest["kind"] in kinds]


def workloads(overlay: str) -> Iterator[Workload]:
    for manifest in of_kind(overlay, "Deployment"):
        yield Workload(overlay, manifest, manifest["spec"]["template"])
    for manifest in of_kind(overlay, "LeaderWorkerSet"):
        group = manifest["spec"]["leaderWorkerTemplate"]
        for template in (group["leaderTemplate"], group["workerTemplate"]):
            yield Workload(overlay, manifest, template)


def workload(overlay: str, index: int) -> Workload:
    return list(workloads(overlay))[index]


def selects(selector: Manifest, labels: Manifest) -> bool:
    """Whether matchLabels or a Service's plain selector choose these labels; an empty one chooses all."""
    wanted = selector.get("matchLabels", selector)
    return all(labels.get(key) == value for key, value in wanted.items())
