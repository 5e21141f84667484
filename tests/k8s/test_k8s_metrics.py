"""Alerts, boards and autoscalers ask for metrics that the services have, by labels that these carry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from draft_service.metrics import DraftMetrics
from router.discovery_watch import PeerWatch
from router.draft_link import DraftLink
from router.fleet import Fleet
from router.fleet_metrics import FleetCollector
from router.members import Members
from router.metrics import RouterMetrics
from router.queue import RequestQueue
from router.target_link import TargetLink
from target_service.metrics import TargetMetrics
from tests.support.manifests import OVERLAYS, ROOT, of_kind

BOARD = json.loads((ROOT / "k8s/components/monitoring/dashboard.json").read_text())
OF_PROMETHEUS = {"namespace", "pod", "component", "le"}  # labels that scraping adds, and a histogram's own
SELECTED = re.compile(r"([a-z][a-z0-9_:]*)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|ignoring|on|group_left) ?\(([^)]*)\)")
COMPONENTS = {"router": RouterMetrics, "draft": DraftMetrics, "target": TargetMetrics}


def exported(component: str) -> dict[str, set[str]]:
    """The sample names that a component's registry serves, with their own labels."""
    registry = CollectorRegistry()
    COMPONENTS[component](registry)
    if component == "router":
        nobody = PeerWatch((), interval_s=1)
        fleet = Fleet(
            Members(nobody, TargetLink, kind="target"), Members(nobody, DraftLink, kind="draft"), tokenizer_vocab_size=1
        )
        registry.register(FleetCollector(fleet, RequestQueue(1)))
    names: dict[str, set[str]] = {}
    for collector, of_collector in registry._collector_to_names.items():
        described = {sample.name for metric in collector.collect() for sample in metric.samples}
        for name in {*of_collector, *described}:
            names[name] = set(getattr(collector, "_labelnames", ()))
    return names


EXPORTED = {component: exported(component) for component in COMPONENTS}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in of_kind("monitoring", "PrometheusRule"):
        for group in rule["spec"]["groups"]:
            yield from ((entry["alert"], entry["expr"]) for entry in group["rules"])
    for panel in BOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


ALL = [pytest.param(expression, id=name) for name, expression in expressions()]


@pytest.mark.parametrize("expression", ALL)
def test_an_expression_asks_for_what_its_component_exports(expression: str) -> None:
    found = SELECTED.findall(expression)
    assert found, expression
    own: set[str] = set()
    for name, matchers in found:
        labels = dict(re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers))
        if name == "up":
            assert set(labels["component"].split("|")) <= COMPONENTS.keys()
            continue
        component = labels["component"]
        assert name in EXPORTED[component], f"{component} has no {name}"
        own |= EXPORTED[component][name]
        assert labels.keys() - OF_PROMETHEUS <= EXPORTED[component][name], f"{name} has no such label: {labels}"
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",") if label.strip()} <= own | OF_PROMETHEUS, group


def test_every_name_in_an_expression_is_selected_by_component() -> None:
    known = {name for names in EXPORTED.values() for name in names}
    for name, expression in expressions():
        bare = set(re.findall(r"\b(?:vllm:|paceline_)[a-z0-9_]+", SELECTED.sub("", expression)))
        assert not bare, f"{name}: {bare & known or bare}"


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in of_kind("monitoring", "PrometheusRule"):
        for group in rule["spec"]["groups"]:
            for entry in group["rules"]:
                assert entry["labels"]["severity"] in ("warning", "critical")
                assert {"summary", "description"} <= entry["annotations"].keys()


def test_drafts_scale_on_a_gauge_that_drafts_export() -> None:
    asked = set()
    for overlay in OVERLAYS:
        for scaler in of_kind(overlay, "HorizontalPodAutoscaler"):
            metrics = [
                entry["pods"]["metric"]["name"] for entry in scaler["spec"]["metrics"] if entry["type"] == "Pods"
            ]
            asked |= set(metrics)
        for scaler in of_kind(overlay, "ScaledObject"):
            triggers = [trigger for trigger in scaler["spec"]["triggers"] if trigger["type"] == "prometheus"]
            asked |= {SELECTED.search(trigger["metadata"]["query"])[1] for trigger in triggers}
    assert asked == {"paceline_draft_sessions"}
    assert asked <= EXPORTED["draft"].keys()


def test_prometheus_scrapes_the_port_of_every_service() -> None:
    (monitor,) = of_kind("monitoring", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert endpoint["relabelings"][0]["targetLabel"] == "component"


def test_the_board_is_one_that_grafana_can_load() -> None:
    assert BOARD["uid"] == "paceline"
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
