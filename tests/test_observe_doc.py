"""docs/observe.md lists every metric that the services have, with type, labels and meaning, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from draft_service.metrics import DraftMetrics
from paceline.plumbing import Plumbing, ServiceFlags
from paceline.v1.draft_pb2_grpc import DraftServiceStub
from router.config import RouterConfig
from router.running import running_router
from target_service.metrics import TargetMetrics
from tests.router.conftest import ScriptedDraft, ScriptedTarget
from tests.support.certificates import Authority

DOC = Path(__file__).resolve().parent.parent / "docs/observe.md"
HEAD = ["| metric | of | kind | labels | what |", "|---|---|---|---|---|"]
SUFFIX = {"counter": "_total"}


@pytest.fixture
def secured(tmp_path: Path) -> ServiceFlags:
    files = Authority(tmp_path).issue("service")
    return ServiceFlags(tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)


def metrics(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    """Name, kind, labels and meaning of each."""
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            if family.name.startswith("process_"):
                continue
            labels = getattr(collector, "_labelnames", None)
            if labels is None:
                labels = [name for sample in family.samples[:1] for name in sample.labels if name != "le"]
            names = ", ".join(f"`{name}`" for name in labels)
            yield family.name + SUFFIX.get(family.type, ""), family.type, names, family.documentation.rstrip(".")


async def test_the_table_of_metrics_is_that_of_the_services(secured: ServiceFlags) -> None:
    registries = {name: CollectorRegistry() for name in ("router", "target", "draft")}
    for registry in registries.values():
        DraftServiceStub(Plumbing(secured, registry).open_channel("127.0.0.1:1"))  # counts bytes by method
    TargetMetrics(registries["target"])
    DraftMetrics(registries["draft"])
    target, draft = ScriptedTarget(), ScriptedDraft()
    await target.start()
    await draft.start()
    try:
        config = RouterConfig(port=0, targets=(target.address,), drafts=(draft.address,))
        async with running_router(config) as router:
            rows: dict[tuple[str, str, str, str], dict[str, None]] = {}
            for service, registry in [("router", router.registry), *registries.items()]:
                for row in metrics(registry):
                    rows.setdefault(row, {})[service] = None
    finally:
        await target.die()
        await draft.die()
    table = [
        f"| `{name}` | {', '.join(services)} | {kind} | {labels} | {text} |"
        for (name, kind, labels, text), services in sorted(rows.items(), key=lambda item: (item[0][0], list(item[1])))
    ]
    wanted = "\n".join(HEAD + table)
    assert wanted in DOC.read_text(), f"put this table into {DOC}:\n{wanted}"
