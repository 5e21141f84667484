"""Every rendered object against the schema of its kind, strictly: of the oldest and newest Kubernetes, and of CRDs."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.manifests import OVERLAYS, ROOT, Manifest, render

OLDEST, NEWEST = "1.27", "1.37"  # docs/deploy.md names them; gRPC probes are stable since 1.27
CUSTOM = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
}
# No registry has a model of these: the fields that their APIs name, and a group's pods as templates of Kubernetes' own.
ROUTE = "gateway.networking.k8s.io/v1"
ROUTE_FIELDS = {
    "spec": {"parentRefs", "hostnames", "rules"},
    "spec/parentRefs/0": {"group", "kind", "namespace", "name", "sectionName", "port"},
    "spec/rules/0": {"name", "matches", "filters", "backendRefs"},
    "spec/rules/0/matches/0": {"method", "headers"},
    "spec/rules/0/matches/0/method": {"type", "service", "method"},
    "spec/rules/0/backendRefs/0": {"group", "kind", "name", "namespace", "port", "weight", "filters"},
}
GROUP = "leaderworkerset.x-k8s.io/v1"
GROUP_FIELDS = {
    "spec": {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"},
    "spec/leaderWorkerTemplate": {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy"},
    "spec/rolloutStrategy": {"type", "rollingUpdateConfiguration"},
    "spec/rolloutStrategy/rollingUpdateConfiguration": {"partition", "maxUnavailable", "maxSurge"},
}
TOOLS = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "k8s/tools").glob("*.yaml"))]
# An object that several overlays have alike is checked once.
OBJECTS = {
    json.dumps(manifest, sort_keys=True): pytest.param(manifest, id=f"{overlay}-{manifest['kind']}-{index}")
    for overlay in reversed(OVERLAYS)
    for index, manifest in enumerate(render(overlay))
}.values()
BUILT_IN = [entry for entry in OBJECTS if entry.values[0]["apiVersion"] not in {*CUSTOM, GROUP, ROUTE}] + TOOLS
OF_CRDS = [entry for entry in OBJECTS if entry.values[0]["apiVersion"] in CUSTOM]


@pytest.mark.parametrize("manifest", BUILT_IN)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_an_object_fits_the_schema_of_its_kind(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)  # raises for a kind without a schema, too


@pytest.mark.parametrize("manifest", OF_CRDS)
def test_a_custom_object_fits_the_model_of_its_crd(manifest: Manifest) -> None:
    model = getattr(importlib.import_module(CUSTOM[manifest["apiVersion"]]), manifest["kind"])
    read = model.model_validate(manifest).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert list(unknown_fields(manifest, read)) == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_group_of_hosts_has_fields_of_its_api_and_pods_that_fit_their_schema(version: str) -> None:
    groups = [manifest for overlay in OVERLAYS for manifest in render(overlay) if manifest["apiVersion"] == GROUP]
    assert groups
    for group in groups:
        assert_fields(group, GROUP_FIELDS)
        spec = group["spec"]
        assert spec["startupPolicy"] in ("LeaderCreated", "LeaderReady")
        assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert rolling["maxUnavailable"] + rolling["maxSurge"] > 0
        for name in ("leaderTemplate", "workerTemplate"):
            template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}}
            kubernetes_validate.validate(
                {**template, "template": spec["leaderWorkerTemplate"][name]}, version, strict=True
            )


def test_a_route_has_fields_of_its_api() -> None:
    routes = [manifest for overlay in OVERLAYS for manifest in render(overlay) if manifest["apiVersion"] == ROUTE]
    assert [route["kind"] for route in routes] == ["GRPCRoute"]
    assert_fields(routes[0], ROUTE_FIELDS)


def test_a_misspelt_field_and_an_unknown_kind_are_found() -> None:
    (deployment, *_) = [manifest for manifest in render("single-node") if manifest["kind"] == "Deployment"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 1}}, NEWEST, strict=True)
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        kubernetes_validate.validate({**deployment, "kind": "Deploiment"}, NEWEST, strict=True)
    assert list(unknown_fields({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})) == ["/a/0/c"]


def assert_fields(manifest: Manifest, fields: dict[str, set[str]]) -> None:
    """Of each path, no field but these."""
    for path, known in fields.items():
        steps = [int(step) if step.isdecimal() else step for step in path.split("/")]
        assert functools.reduce(lambda part, step: part[step], steps, manifest).keys() <= known, path


def unknown_fields(written: Any, read: Any, path: str = "") -> Iterator[str]:
    """What a model that passes over fields it does not know has left out."""
    if isinstance(written, dict):
        for key, value in written.items():
            if not isinstance(read, dict) or key not in read:
                yield f"{path}/{key}"
            else:
                yield from unknown_fields(value, read[key], f"{path}/{key}")
    elif isinstance(written, list):
        for index, (value, other) in enumerate(zip(written, read, strict=True)):
            yield from unknown_fields(value, other, f"{path}/{index}")
