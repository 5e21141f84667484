"""The live page: what it is told, what it refuses, and that a browser shows it, 1,000 requests included."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.v1 import target_pb2, verify_pb2
from router.page.live_page import FRESH_S
from tests.router.conftest import Rig, ScriptedTarget, soon
from tests.support import browser as chromium

Make = Callable[..., Awaitable[Any]]
NUM_MANY = 1000
TREE = {"tokens": [500, 510, 520, 530], "parents": [-1, 0, 0, 1]}


class RoundTarget(ScriptedTarget):
    """A target whose last round had so many sessions, each with the same tree, of which two drafts were accepted."""

    num_sessions = 3

    async def InspectRound(self, request: Any, context: Any) -> target_pb2.TargetServiceInspectRoundResponse:
        size, nodes = self.num_sessions, len(TREE["tokens"])
        view = verify_pb2.RoundView(step=42, time_unix_ms=1_700_000_000_000, timings_ms={"forward": 9.5, "plan": 0.5})
        view.verify_input.session.extend(range(1, size + 1))
        view.verify_input.round.extend([7] * size)
        view.verify_input.base_committed_len.extend([100] * size)
        view.verify_input.num_tokens_per_req.extend([nodes] * size)
        view.verify_input.draft_token.extend(TREE["tokens"] * size)
        view.verify_input.parents.extend(TREE["parents"] * size)
        view.verify_output.session.extend(range(1, size + 1))
        view.verify_output.accept_length.extend([2] * size)
        for entry in range(size):
            view.verify_output.accepted_indices.extend(entry * nodes + node for node in (0, 1, 3))
            view.verify_output.verified_id.extend([510, 530, 540])
        view.extend_input.session.append(2)
        if not request.brief:
            view.extend_input.kv_indptr.extend([0, 5])
            view.extend_input.kv_indices.extend([16, 17, 18, 40, 41])
        return target_pb2.TargetServiceInspectRoundResponse(round=view)


async def get(rig: Rig, path: str, *, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.page_port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: page\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await soon(reader.read())).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split(" ")[1]), dict(field.split(": ", 1) for field in fields), body


async def get_json(rig: Rig, path: str) -> Any:
    status, headers, body = await get(rig, path)
    assert status == 200 and headers["Content-Type"] == "application/json"
    return json.loads(body)


async def cost(rig: Rig, path: str) -> tuple[int, float]:
    """Bytes of an answer, and milliseconds of CPU that it takes the router, the scripted peer and the reader here."""
    spent_s, num_looks = 0.0, 3
    for _ in range(num_looks):
        await asyncio.sleep(2 * FRESH_S)  # the last answer is too old to be given again
        begun_s = time.process_time()
        _, _, body = await get(rig, path)
        spent_s += time.process_time() - begun_s
    return len(body), 1e3 * spent_s / num_looks


def busy_ms(browser: chromium.Browser, *, turns: int) -> float:
    """Milliseconds that the page's thread is at work in a refresh."""
    looks = "performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('api/state')).length"

    def spent_s() -> float:
        metrics = browser.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    browser.send("Performance.enable")
    first, begun_s = browser.run(looks), spent_s()
    browser.wait(f"{looks} >= {first + turns}", timeout_s=60)
    return 1e3 * (spent_s() - begun_s) / (browser.run(looks) - first)


async def test_the_state_names_the_fleet_the_decisions_and_the_requests(make_target: Make, make_rig: Make) -> None:
    target = await make_target()
    rig = await make_rig([target], page_port=0, speculative_policy="off")
    stream = await target.next_stream()
    call = rig.generate(max_tokens=50, request_id="seen", tenant="acme")
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [5, 6, 7])
    stream.load(running_requests=1, mean_accepted_length=2.5, accepted_by_depth=[0.9, 0.6], step_ms=12.5, rows=9)
    await soon(call.read())
    await rig.info_when(lambda info: info.targets[0].running_requests == 1)
    state = await get_json(rig, "/api/state")
    while not state["targets"][0]["step_ms"]:  # the request counts before the load has come
        state = await soon(get_json(rig, "/api/state"))
    (shown,) = state["targets"]
    assert (shown["address"], shown["ready"], shown["requests"]) == (target.address, True, 1)
    assert (shown["accepted_by_depth"], shown["mean_accepted_length"], shown["step_ms"]) == ([0.9, 0.6], 2.5, 12.5)
    assert state["in_force"] == [["policy:off", "off", 1]] and state["live"] == 1
    assert state["totals"]["vllm:generation_tokens"] == [[3.0]]
    assert state["totals"]["paceline_router_decisions"] == [["policy", "false", 1.0]]
    table = await get_json(rig, "/api/sessions")
    (row,) = (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])
    assert (row["request_id"], row["tenant"], row["state"], row["target"]) == (
        "seen",
        "acme",
        "running",
        target.address,
    )
    assert (row["tokens"], row["max_tokens"], row["prompt"]) == (3, 50, 3)
    call.cancel()


async def test_a_round_comes_with_its_tree_the_accepted_path_and_texts(start_peer: Make, make_rig: Make) -> None:
    target = await start_peer(RoundTarget())
    rig = await make_rig([target], page_port=0)
    document = await get_json(rig, f"/api/round?address={target.address}&session=2")
    assert document["session"] == [1, 2, 3] and document["accepted"] == [2, 2, 2] and document["step"] == 42
    tree = document["tree"]
    assert (tree["session"], tree["base_committed_len"], tree["parents"]) == (2, 100, TREE["parents"])
    assert tree["accepted"] == [0, 1, 3] and tree["new_token"]["token"] == 540
    assert len(tree["texts"]) == 4 and "kv_slots" not in tree
    document = await get_json(rig, f"/api/round?address={target.address}&session=2&kv=1")
    assert document["tree"]["kv_slots"] == [[16, 18], [40, 41]]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("address=127.0.0.1:1", 400, "is no target or draft of this router"),
        ("address={target}&session=9", 400, "session 9 is not in the last round"),
        ("address={target}&session=x", 400, "it must be a number"),
        ("", 400, "is no target or draft"),
    ],
)
async def test_a_round_that_cannot_be_shown_says_why(
    start_peer: Make, make_rig: Make, query: str, status: int, message: str
) -> None:
    target = await start_peer(RoundTarget())
    rig = await make_rig([target], page_port=0)
    got, _, body = await get(rig, f"/api/round?{query.format(target=target.address)}")
    assert got == status and message in json.loads(body)["error"]


async def test_a_peer_that_does_not_answer_is_an_error_of_its_own(make_target: Make, make_rig: Make) -> None:
    target = await make_target()  # without InspectRound
    rig = await make_rig([target], page_port=0)
    status, _, body = await get(rig, f"/api/round?address={target.address}")
    assert status == 502 and target.address in json.loads(body)["error"]


async def test_the_files_are_served_and_nothing_else(make_target: Make, make_rig: Make) -> None:
    rig = await make_rig([await make_target()], page_port=0)
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        status, headers, body = await get(rig, path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and body
        assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert (await get(rig, "/../config.py"))[0] == 404
    assert (await get(rig, "/", method="POST"))[0] == 405
    assert (await get(rig, "http://[/"))[0] == 400
    assert (await get(rig, "/" + "x" * 20_000))[0] == 431


async def test_without_the_flag_there_is_no_page(make_target: Make, make_rig: Make) -> None:
    assert (await make_rig([await make_target()])).router.page_port == 0


@pytest.fixture
def browser() -> Iterator[chromium.Browser]:
    if chromium.PROGRAM is None:
        pytest.skip("no Chromium here; Debian's package chromium brings one")
    with chromium.browser() as browser:
        yield browser


@pytest.mark.slow
async def test_a_browser_shows_the_page_with_a_thousand_requests(
    start_peer: Make, make_rig: Make, browser: chromium.Browser, tmp_path: Path
) -> None:
    target = RoundTarget(slots=NUM_MANY)
    target.num_sessions = NUM_MANY
    await start_peer(target)
    rig = await make_rig([target], page_port=0, speculative_policy="always")
    stream = await target.next_stream()
    calls = [rig.generate(max_tokens=99, request_id="<b>request-0000", tenant="t0")]
    submissions = await stream.next_submit()  # the page begins with the oldest, and calls at once overtake each other
    calls += [
        rig.generate(max_tokens=99, request_id=f"<b>request-{i:04}", tenant=f"t{i % 7}") for i in range(1, NUM_MANY)
    ]
    while len(submissions) < NUM_MANY:
        submissions += await stream.next_submit()
    for submission in sorted(submissions, key=lambda submission: submission.request_id)[:900]:
        stream.tokens(submission.request, 0, [5, 6])
    stream.load(running_requests=NUM_MANY, mean_accepted_length=2.5, accepted_by_depth=[0.9, 0.6, 0.1])
    await soon(asyncio.gather(*(call.read() for call in calls[:900])))

    def watch() -> dict[str, Any]:
        browser.open(f"http://127.0.0.1:{rig.router.page_port}/")
        browser.wait("document.querySelectorAll('#sessions tr').length === 51")
        browser.wait("document.querySelectorAll('#tree .node').length > 0")
        first_ms = browser.run("performance.now()")  # since the page was asked for
        seen = browser.run(
            "({nodes: document.querySelectorAll('#tree .node').length,"
            " accepted: document.querySelectorAll('#tree .edge.accepted').length,"
            " sessions: document.querySelectorAll('#session option').length,"
            " count: document.getElementById('request-count').textContent,"
            " bars: document.querySelectorAll('#depths rect').length,"
            " first: document.querySelector('#sessions td').textContent,"
            " injected: document.querySelectorAll('#sessions b').length,"
            " status: document.getElementById('status').textContent})"
        )
        browser.run(
            "(() => { const field = document.getElementById('filter'); field.value = 'request-0042';"
            " field.dispatchEvent(new Event('input')); })()"
        )
        seen["found"] = browser.run("document.getElementById('request-count').textContent")
        seen["usable"] = (first_ms, busy_ms(browser, turns=5))
        browser.run("document.getElementById('session').value = '17'")
        browser.run("document.getElementById('session').dispatchEvent(new Event('change'))")
        browser.wait("document.getElementById('round-facts').textContent.includes('session 17,')")
        browser.picture(tmp_path / "page.png")
        browser.send("Page.navigate", url="about:blank")  # the page asks no more
        return {**seen, "console": browser.console}

    seen = await asyncio.to_thread(watch)
    first_ms, a_refresh_ms = seen.pop("usable")
    print(f"\n{NUM_MANY} requests: whole after {first_ms:.0f} ms, then {a_refresh_ms:.0f} ms of work a refresh")
    assert first_ms < 10_000 and a_refresh_ms < 900  # it asks once a second
    for path in ("/api/state", "/api/sessions", f"/api/round?address={target.address}"):
        size, cpu_ms = await cost(rig, path)
        print(f"{path.partition('?')[0]}: {size / 1e3:.0f} kB, {cpu_ms:.1f} ms of CPU")
        assert size < 500_000 and cpu_ms < 500
    assert seen == {
        "nodes": 5,  # and the new token
        "accepted": 3,
        "sessions": NUM_MANY + 1,
        "count": "(1,000)",
        "bars": 3,
        "first": "<b>request-0000",
        "injected": 0,
        "status": "live",
        "found": "(1 of 1,000)",
        "console": [],
    }
    for call in calls:
        call.cancel()
