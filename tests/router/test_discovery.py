"""How the router reads where its peers are, and hears of those that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from paceline.errors import ConfigError, InvalidInputError, UnavailableError
from router.config import RouterConfig
from router.discovery import DnsName, FixedAddress, ListFile, parse_list, parse_sources
from router.discovery_watch import PeerWatch, resolve
from tests.support.waiting import WAIT_S

SOON_S = 0.005


class ScriptedNames:
    """A resolver whose answers a test sets; an error is one that gives no answer."""

    def __init__(self, *addresses: str) -> None:
        self.answer: Sequence[str] | Exception = addresses
        self.asked = asyncio.Event()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [f"{address}:{port}" for address in self.answer]

    async def ask_again(self) -> None:
        """Returns once two more looks have ended with the answer that is set now."""
        for _ in range(2):
            self.asked.clear()
            await asyncio.wait_for(self.asked.wait(), WAIT_S)


def watch(*entries: str, names: ScriptedNames | None = None) -> AsyncIterator[tuple[str, ...]]:
    sources = parse_sources(entries, flag_name="targets")
    return PeerWatch(sources, interval_s=SOON_S, resolve=names or ScriptedNames()).changes()


async def following(changes: AsyncIterator[tuple[str, ...]]) -> tuple[str, ...]:
    return await asyncio.wait_for(anext(changes), WAIT_S)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Returns once a line with the text was logged."""
    async with asyncio.timeout(WAIT_S):
        while text not in caplog.text:  # noqa: ASYNC110 - a log tells nobody
            await asyncio.sleep(SOON_S)


def test_a_flag_takes_addresses_names_and_files_side_by_side() -> None:
    entries = ["a:1", "[::1]:2", "dns:///drafts.ns.svc:7300", "file:///etc/a%20list"]
    assert parse_sources(entries, flag_name="drafts") == (
        FixedAddress("a:1"),
        FixedAddress("[::1]:2"),
        DnsName("drafts.ns.svc", 7300),
        ListFile(Path("/etc/a list")),
    )


BAD_ADDRESSES = ["a", "a:0", "a:65536", ":1", "::1:2", "a:\u0663", "http://a:1"]
BAD_URLS = ["dns://a:1", "dns:///a", "dns:///:1", "dns:///a/b:1", "dns://127.0.0.1/a:1", "file://list", "file:///"]


@pytest.mark.parametrize("entry", [*BAD_ADDRESSES, *BAD_URLS])
def test_an_entry_of_another_form_is_refused_with_the_flag_and_the_forms(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"--drafts is .*host:port, dns:///name:port or file:///path"):
        RouterConfig(drafts=(entry,))


def test_an_entry_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="free of repetitions"):
        RouterConfig(targets=("dns:///a:1", "dns:///a:1"))


def test_a_list_has_comments_and_each_address_once() -> None:
    assert parse_list("# all\na:1, b:2\n\n  c:3 # the new one\na:1") == ("a:1", "b:2", "c:3")
    with pytest.raises(InvalidInputError, match="'nonsense' is no address"):
        parse_list("a:1\nnonsense")


async def test_fixed_addresses_are_told_once_and_watched_no_further() -> None:
    assert [addresses async for addresses in watch("b:2", "a:1")] == [("b:2", "a:1")]


async def test_a_name_is_asked_again_and_a_change_is_told() -> None:
    names = ScriptedNames("10.0.0.1")
    changes = watch("a:1", "dns:///drafts:7", names=names)
    assert await following(changes) == ("a:1", "10.0.0.1:7")
    names.answer = ("10.0.0.2", "10.0.0.1")
    assert await following(changes) == ("a:1", "10.0.0.1:7", "10.0.0.2:7")
    names.answer = ()
    assert await following(changes) == ("a:1",)


async def test_answers_in_another_order_are_no_change() -> None:
    names = ScriptedNames("10.0.0.1", "10.0.0.2")
    changes = watch("dns:///drafts:7", names=names)
    await following(changes)
    more = asyncio.create_task(anext(changes))
    names.answer = ("10.0.0.2", "10.0.0.1")
    await names.ask_again()
    assert not more.done()
    more.cancel()


async def test_a_resolver_that_fails_takes_nobody_away_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    names = ScriptedNames("10.0.0.1")
    changes = watch("dns:///drafts:7", names=names)
    await following(changes)
    more = asyncio.create_task(anext(changes))
    names.answer = UnavailableError("the resolver gives no answer: try again")
    await names.ask_again()
    assert not more.done()
    (line,) = caplog.messages
    assert line == "dns:///drafts:7: the resolver gives no answer: try again (known: 10.0.0.1:7)"
    names.answer = ("10.0.0.9",)
    assert await asyncio.wait_for(more, WAIT_S) == ("10.0.0.9:7",)


async def test_a_name_without_addresses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert await following(watch("dns:///drafts:7")) == ()
    assert "dns:///drafts:7: it names no address; is anything ready behind it?" in caplog.text


async def test_a_file_that_is_replaced_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "drafts"
    file.write_text("a:1\n")
    changes = watch(f"file://{file}")
    assert await following(changes) == ("a:1",)
    more = asyncio.create_task(anext(changes))
    (tmp_path / "next").write_text("a:1\nb:2:3\n")
    (tmp_path / "next").rename(file)
    await logged(caplog, "'b:2:3' is no address")
    file.unlink()
    await logged(caplog, "cannot be read")
    assert not more.done()
    (tmp_path / "next").write_text("a:1\nb:2\n")
    (tmp_path / "next").rename(file)
    assert await asyncio.wait_for(more, WAIT_S) == ("a:1", "b:2")


async def test_the_systems_resolver_gives_every_address_and_nobody_for_a_name_that_is_not() -> None:
    assert "127.0.0.1:7" in await resolve("localhost", 7)
    assert await resolve("::1", 7) == ("[::1]:7",)
