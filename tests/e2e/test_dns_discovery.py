"""Real services behind headless DNS names: replicas are added and removed under load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support.services import ROOT

UNSHARE = ("unshare", "--net", "--mount")
MAY_UNSHARE = (
    bool(shutil.which("unshare"))
    and os.geteuid() == 0
    and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.slow
@pytest.mark.skipif(not MAY_UNSHARE, reason="needs root and unshare, for a network and a resolv.conf of its own")
def test_replicas_come_and_go_by_dns_without_a_failed_request_or_another_token() -> None:
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.e2e.dns_fleet"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    serves_after = [f"{kind} {report[f'{kind}_serves_after_s']:.1f} s" for kind in ("draft", "target")]
    print(f"\n{report['answers']} answers; first use after becoming ready: {', '.join(serves_after)}")
    assert report["failures"] == []
    assert report["wrong"] == 0
    assert report["draft_exit"] == report["target_exit"] == 0
