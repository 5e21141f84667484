"""What a real API server or kubelet would refuse and schemas let pass, read from every rendered overlay."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from router.servicer import SERVICE_NAME
from tests.support.manifests import (
    CONFIGS,
    FLAGS_AT,
    OVERLAYS,
    ROOT,
    Manifest,
    Workload,
    of_kind,
    render,
    selects,
    workload,
    workloads,
)

GPU = "nvidia.com/gpu"
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_workload = pytest.mark.parametrize(
    ("overlay", "index"), [(overlay, i) for overlay in OVERLAYS for i, _ in enumerate(workloads(overlay))]
)


def container_port(of: Workload, name: str) -> int:
    (port,) = [port["containerPort"] for port in of.container["ports"] if port["name"] == name]
    return port


def pods_of(overlay: str, selector: Manifest) -> list[Workload]:
    return [found for found in workloads(overlay) if selects(selector, found.template["metadata"]["labels"])]


def test_there_is_an_overlay_of_each_kind() -> None:
    scaled = {"autoscale", "autoscale-keda"}
    wanted = scaled | {"single-node", "tp", "multi-node", "monitoring", "mtls", "network-policy", "production"}
    wanted |= {"api-keys", "gateway"}
    assert wanted <= set(OVERLAYS)


@each_overlay
def test_an_overlay_renders_the_three_services_into_one_namespace(overlay: str) -> None:
    manifests = render(overlay)
    assert {found.service for found in workloads(overlay)} == set(CONFIGS)
    named = Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)
    assert max(named.values()) == 1
    (namespace,) = of_kind(overlay, "Namespace")
    for manifest in manifests:
        if manifest is not namespace:
            assert manifest["metadata"]["namespace"] == namespace["metadata"]["name"], manifest["metadata"]["name"]


@each_workload
def test_a_selector_chooses_the_pods_of_its_own_template(overlay: str, index: int) -> None:
    found = workload(overlay, index)
    labels = found.template["metadata"]["labels"]
    if found.manifest["kind"] == "Deployment":
        assert found.manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for spread in found.spec.get("topologySpreadConstraints", []):
        assert selects(spread["labelSelector"], labels)


@each_overlay
def test_a_service_leads_to_a_port_of_the_pods_that_it_selects(overlay: str) -> None:
    services = of_kind(overlay, "Service")
    assert {service["metadata"]["name"] for service in services} >= {"paceline-router", "paceline-draft"}
    for service in services:
        found = pods_of(overlay, service["spec"]["selector"])
        assert found, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert 1 <= port["port"] <= 65535
            for pods in found:
                # Routers dial the pods' own port, for a headless name leads past the Service's.
                assert container_port(pods, port["targetPort"]) == port["port"]


@each_overlay
def test_a_disruption_budget_has_one_limit_and_the_pods_of_one_service(overlay: str) -> None:
    covered = set()
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        spec = budget["spec"]
        assert len({"minAvailable", "maxUnavailable"} & spec.keys()) == 1
        (component,) = {found.component for found in pods_of(overlay, spec["selector"])}
        covered.add(component)
    assert covered == set(CONFIGS)


@each_overlay
def test_an_autoscaler_has_bounds_in_order_and_a_target_that_names_no_number(overlay: str) -> None:
    scalers = of_kind(overlay, "HorizontalPodAutoscaler", "ScaledObject")
    assert bool(scalers) == (overlay in {"autoscale", "autoscale-keda", "production"})
    names = [scaler["spec"]["scaleTargetRef"]["name"] for scaler in scalers]
    assert len(names) == len(set(names))
    for scaler in scalers:
        spec = scaler["spec"]
        suffix = "s" if scaler["kind"] == "HorizontalPodAutoscaler" else "Count"
        least, most = (spec[f"{bound}Replica{suffix}"] for bound in ("min", "max"))
        assert 1 <= least <= most
        (target,) = [found for found in workloads(overlay) if found.name == spec["scaleTargetRef"]["name"]]
        assert "replicas" not in target.manifest["spec"]
        assert target.manifest["kind"] == spec["scaleTargetRef"].get("kind", "Deployment")


@each_workload
def test_every_container_says_what_it_needs_and_gpus_are_requested_as_limited(overlay: str, index: int) -> None:
    spec = workload(overlay, index).spec
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]
        assert resources["requests"].get(GPU) == resources["limits"].get(GPU)


@each_workload
def test_a_pod_runs_as_nobody_in_particular_and_may_nothing(overlay: str, index: int) -> None:
    found = workload(overlay, index)
    pod = found.spec["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] == 10001
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found.spec["automountServiceAccountToken"] is False
    for container in [*found.spec["containers"], *found.spec.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    if found.component == "router":
        assert found.container["securityContext"]["readOnlyRootFilesystem"]


@each_workload
def test_a_mount_has_its_volume_and_every_volume_is_mounted(overlay: str, index: int) -> None:
    spec = workload(overlay, index).spec
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    claims = {claim["metadata"]["name"] for claim in of_kind(overlay, "PersistentVolumeClaim")}
    for volume in spec["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert claim["claimName"] in claims


@each_workload
def test_the_real_program_takes_the_flags_of_its_manifest(overlay: str, index: int, tmp_path: Path) -> None:
    found = workload(overlay, index)
    config = found.config(tmp_path)
    assert config.host == "0.0.0.0"
    assert config.port == container_port(found, "grpc")
    assert found.is_worker or config.metrics_port == container_port(found, "metrics")
    if found.service == "draft":
        assert config.round_port == container_port(found, "tcp-rounds")
    folder = Path(config.model_path)
    assert any(folder.is_relative_to(mount["mountPath"]) for mount in found.container["volumeMounts"])
    if found.service == "target":
        assert found.container["resources"]["limits"].get(GPU, "1") == str(config.ranks_per_host)
    if found.service != "router":
        assert (config.device == "cuda") == (GPU in found.container["resources"]["limits"])


@each_overlay
def test_routers_look_for_the_services_that_there_are(overlay: str, tmp_path: Path) -> None:
    headless = {
        f"dns:///{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
        for service in of_kind(overlay, "Service")
        if service["spec"].get("clusterIP") == "None"
    }
    (router,) = [found for found in workloads(overlay) if found.component == "router"]
    config = router.config(tmp_path)
    assert {*config.targets, *config.drafts} <= headless
    assert len({*config.targets, *config.drafts}) == 2


@each_workload
def test_a_pod_has_time_to_drain_before_it_is_killed(overlay: str, index: int, tmp_path: Path) -> None:
    found = workload(overlay, index)
    if found.is_worker:  # it waits for the leader through SIGTERM, so it needs no less time
        (leader,) = [other for other in workloads(overlay) if other.component == found.service]
        assert found.spec["terminationGracePeriodSeconds"] > leader.spec["terminationGracePeriodSeconds"]
        return
    command = found.container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    pre_stop_s = float(command[1])
    # Longer than it takes a router to look the name up again and a kubelet to find the pod unready.
    assert pre_stop_s >= 5
    assert pre_stop_s + found.config(tmp_path).drain_timeout_s + 5 <= found.spec["terminationGracePeriodSeconds"]


@each_workload
def test_shared_memory_for_ranks_counts_within_the_pods_memory(overlay: str, index: int, tmp_path: Path) -> None:
    found = workload(overlay, index)
    mounts = {mount["mountPath"]: mount["name"] for mount in found.container["volumeMounts"]}
    if found.service != "target":
        assert "/dev/shm" not in mounts
        return
    (shm,) = [volume["emptyDir"] for volume in found.spec["volumes"] if volume["name"] == mounts["/dev/shm"]]
    assert shm["medium"] == "Memory"
    assert gibibytes(shm["sizeLimit"]) < gibibytes(found.container["resources"]["limits"]["memory"])
    assert gibibytes(shm["sizeLimit"]) >= found.config(tmp_path).tp_size


@each_workload
def test_images_are_those_of_the_dockerfile_with_a_version(overlay: str, index: int) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    found = workload(overlay, index)
    assert found.container["image"].startswith(f"paceline-{found.service}:")
    for container in [*found.spec["containers"], *found.spec.get("initContainers", [])]:
        name, _, tag = container["image"].partition(":")
        assert name.removeprefix("paceline-") in stages
        assert re.fullmatch(r"\d+\.\d+\.\d+", tag)


@each_workload
def test_the_flags_folder_cannot_be_written(overlay: str, index: int) -> None:
    mounts = workload(overlay, index).container["volumeMounts"]
    assert all(mount.get("readOnly") for mount in mounts if mount["mountPath"] in (FLAGS_AT, "/models"))


def test_the_hosts_of_a_target_agree_on_their_number_and_meeting_place(tmp_path: Path) -> None:
    (group,) = of_kind("multi-node", "LeaderWorkerSet")
    leader, worker = [found for found in workloads("multi-node") if found.service == "target"]
    configs = []
    for found in (leader, worker):
        folder = tmp_path / found.component
        folder.mkdir()
        configs.append(found.config(folder))
    first, second = configs
    assert (first.node_rank, second.node_rank) == (0, 1)
    assert first.nnodes == second.nnodes == group["spec"]["leaderWorkerTemplate"]["size"]
    assert first.dist_init_addr == second.dist_init_addr == "leader:29500"
    # Its controller makes a Service of its name, which must lead to pods that are not ready yet.
    assert group["metadata"]["name"] not in {
        service["metadata"]["name"] for service in of_kind("multi-node", "Service")
    }
    (service,) = [found for found in of_kind("multi-node", "Service") if found["metadata"]["name"] == "paceline-target"]
    assert pods_of("multi-node", service["spec"]["selector"]) == [leader]


def test_the_network_lets_through_what_the_design_names_and_no_more() -> None:
    allowed: set[tuple[str, str, int]] = set()  # from, to, port
    policies = of_kind("network-policy", "NetworkPolicy")
    for policy in policies:
        spec = policy["spec"]
        here = component_of(spec["podSelector"])
        for rule in spec.get("ingress", []):
            allowed |= {(component_of(peer), here, port["port"]) for peer in rule["from"] for port in rule["ports"]}
    dns, clients, metrics = "kube-system", "clients", "monitoring"
    assert allowed == {
        (clients, "router", 7100),
        ("router", "target", 7200),
        ("router", "draft", 7300),
        ("target", "draft", 7300),
        ("target", "draft", 7301),
        (metrics, "all", 9090),
    }
    leaving = {
        (component_of(policy["spec"]["podSelector"]), component_of(peer), port["port"])
        for policy in policies
        for rule in policy["spec"].get("egress", [])
        for peer in rule["to"]
        for port in rule["ports"]
    }
    within = {edge for edge in allowed if edge[0] not in (clients, metrics)}
    assert leaving == within | {("all", dns, 53)}
    for policy in policies:
        assert "Ingress" in policy["spec"]["policyTypes"]


def component_of(peer: Any) -> str:
    """Whom a policy's selector or peer means."""
    if "namespaceSelector" in peer:
        labels = peer["namespaceSelector"].get("matchLabels", {})
        return labels.get("kubernetes.io/metadata.name", "clients")
    labels = peer.get("podSelector", peer)["matchLabels"]
    return labels.get("app.kubernetes.io/component", "all")


def gibibytes(quantity: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return float(number) / (1024 if unit == "Mi" else 1)


@pytest.mark.parametrize("overlay", ["mtls", "production"])
def test_a_service_reads_the_certificate_that_is_issued_for_it(overlay: str, tmp_path: Path) -> None:
    issuers = {issuer["metadata"]["name"]: issuer["spec"] for issuer in of_kind(overlay, "Issuer")}
    certificates = {found["spec"]["secretName"]: found["spec"] for found in of_kind(overlay, "Certificate")}
    for found in workloads(overlay):
        folder = tmp_path / found.component
        folder.mkdir()
        config = found.config(folder)
        files = config.tls_files()
        assert files.verify_clients
        at = str(Path(files.cert).parent)
        (mount,) = [mount for mount in found.container["volumeMounts"] if mount["mountPath"] == at]
        assert mount["readOnly"]
        assert "subPath" not in mount
        (secret,) = [volume["secret"] for volume in found.spec["volumes"] if volume["name"] == mount["name"]]
        assert secret["secretName"] == f"paceline-{found.component}-tls"
        assert secret["defaultMode"] == 0o440
        names = [Path(path).name for path in (files.cert, files.key, files.ca)]
        assert names == ["tls.crt", "tls.key", "ca.crt"]
        assert {Path(path).parent for path in (files.cert, files.key, files.ca)} == {Path(mount["mountPath"])}

        certificate = certificates[secret["secretName"]]
        assert files.peer_name in certificate["dnsNames"]
        assert {"server auth", "client auth"} <= set(certificate["usages"])
        authority = issuers[certificate["issuerRef"]["name"]]["ca"]["secretName"]
        assert certificates[authority]["isCA"]
        assert config.health_port == container_port(found, "health")


def test_clients_get_a_certificate_of_the_same_authority() -> None:
    certificates = {found["metadata"]["name"]: found["spec"] for found in of_kind("mtls", "Certificate")}
    assert certificates["paceline-client"]["issuerRef"] == certificates["paceline-router"]["issuerRef"]


@pytest.mark.parametrize("overlay", ["api-keys", "production"])
def test_routers_read_api_keys_from_a_secret_that_may_change_under_them(overlay: str, tmp_path: Path) -> None:
    for found in workloads(overlay):
        folder = tmp_path / found.component
        folder.mkdir()
        if found.component != "router":
            assert "api-keys" not in found.flag_values()
            continue
        path = Path(found.config(folder).api_keys)
        (mount,) = [mount for mount in found.container["volumeMounts"] if mount["mountPath"] == str(path.parent)]
        assert mount["readOnly"] and "subPath" not in mount
        (secret,) = [volume["secret"] for volume in found.spec["volumes"] if volume["name"] == mount["name"]]
        assert secret == {"secretName": "paceline-api-keys", "defaultMode": 0o440}
    text = (ROOT / "docs/secure.md").read_text()
    assert f"create secret generic {secret['secretName']} --from-file={path.name}" in text
    assert not of_kind(overlay, "Secret")


def test_a_route_leads_every_call_of_the_router_to_the_routers_service() -> None:
    (route,) = of_kind("gateway", "GRPCRoute")
    (rule,) = route["spec"]["rules"]
    assert [match["method"] for match in rule["matches"]] == [{"type": "Exact", "service": SERVICE_NAME}]
    (backend,) = rule["backendRefs"]
    (service,) = [found for found in of_kind("gateway", "Service") if found["metadata"]["name"] == backend["name"]]
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert {found.component for found in pods_of("gateway", service["spec"]["selector"])} == {"router"}
    (parent,) = route["spec"]["parentRefs"]
    assert f"metadata: {{name: {parent['name']}, namespace: paceline}}" in (ROOT / "docs/deploy.md").read_text()
