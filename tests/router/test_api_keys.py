"""API keys at the router: who is let in as whom, what the others are told, and that the file is watched."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.aio import AsyncPacelineClient
from client.commands import api_key
from client.credentials import Credentials
from client.request import GenerateOptions, Sampling
from paceline.errors import AccessError, ConfigError, ForbiddenError
from router.api_keys import ApiKeys

Make = Callable[..., Awaitable[Any]]
KEYS = {"acme": "pl_acme-key", "two words": "pl_other-key"}


def line(tenant: str, key: str) -> str:
    return f"{tenant} sha256:{hashlib.sha256(key.encode()).hexdigest()}\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("# tenants\n\n" + "".join(line(tenant, key) for tenant, key in KEYS.items()))
    return path


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_key_says_whose_it_is(keys_file: Path) -> None:
    keys = ApiKeys(str(keys_file), clock=Clock())
    assert [keys.tenant_of(f"Bearer {key}") for key in KEYS.values()] == list(KEYS)
    assert keys.tenant_of("bearer  pl_acme-key ") == "acme"


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        (None, "no API key: send the metadata"),
        ("Basic cGw=", "not of the form 'Bearer KEY'"),
        ("Bearer ", "not of the form 'Bearer KEY'"),
        ("Bearer pl_acme-kez", "this API key is not known here"),
    ],
)
def test_what_is_no_key_is_refused_without_a_word_about_it(
    keys_file: Path, authorization: str | None, message: str
) -> None:
    with pytest.raises(AccessError, match=message) as caught:
        ApiKeys(str(keys_file), clock=Clock()).tenant_of(authorization)
    assert "pl_" not in str(caught.value)


def test_the_file_is_read_again_when_it_changes(keys_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    keys = ApiKeys(str(keys_file), clock=clock)
    keys_file.write_text(line("late", "pl_late-key"))
    with pytest.raises(AccessError):
        keys.tenant_of("Bearer pl_late-key")  # not looked at within the same second
    clock.now_s = 1.5
    assert keys.tenant_of("Bearer pl_late-key") == "late"
    with pytest.raises(AccessError):
        keys.tenant_of("Bearer pl_acme-key")
    keys_file.write_text("late pl_plain-by-mistake\n")
    clock.now_s = 3.0
    with caplog.at_level(logging.INFO):
        assert keys.tenant_of("Bearer pl_late-key") == "late"
        assert keys.tenant_of("Bearer pl_late-key") == "late"
    (record,) = caplog.records
    assert "line 1: not of the form" in record.getMessage() and "pl_" not in record.getMessage()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acme\n", "line 1: not of the form"),
        ("acme sha256:12\n", "line 1: the hash is not 64 hexadecimal digits"),
        (line("a", "k") + line("b", "k"), "line 2: the same key stands above"),
    ],
)
def test_a_file_that_does_not_parse_ends_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ApiKeys(str(path), clock=Clock())
    with pytest.raises(ConfigError, match="cannot be read"):
        ApiKeys(str(tmp_path / "missing"), clock=Clock())


async def test_a_request_runs_as_its_keys_tenant(make_target: Make, make_rig: Make, keys_file: Path) -> None:
    target = await make_target()
    rig = await make_rig([target], api_keys=str(keys_file))
    stream = await target.next_stream()
    address = f"127.0.0.1:{rig.router.port}"

    async with AsyncPacelineClient(address, credentials=Credentials(api_key=KEYS["acme"])) as client:
        generation = client.generate([5, 6], sampling=Sampling(max_tokens=9))
        submission = await stream.next_submission()
        (live,) = rig.router.dispatcher.lives
        assert live.request.terms.tenant == "acme"
        stream.tokens(submission.request, 0, [7])
        stream.finish(submission.request)
        assert (await generation.result()).token_ids == (7,)
        with pytest.raises(ForbiddenError, match="the API key is not tenant 'two words'"):
            await client.generate([5], options=GenerateOptions(tenant="two words")).result()
    for key, message in (("", "no API key"), ("pl_wrong", "not known here")):
        async with AsyncPacelineClient(address, credentials=Credentials(api_key=key)) as client:
            with pytest.raises(AccessError, match=message):
                await client.generate([5]).result()
            assert (await client.info()).info.service == "router"  # what it is may be asked by all who reach it


async def test_keys_are_in_no_log_line(
    make_target: Make, make_rig: Make, keys_file: Path, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        rig = await make_rig([await make_target()], api_keys=str(keys_file))
        assert (await failure(rig.generate()))[0] is grpc.StatusCode.UNAUTHENTICATED
        async with AsyncPacelineClient(
            f"127.0.0.1:{rig.router.port}", credentials=Credentials(api_key="pl_secret")
        ) as client:
            with pytest.raises(AccessError):
                await client.generate([5]).result()
    assert "pl_secret" not in caplog.text and "pl_secret" not in repr(Credentials(api_key="pl_secret"))


def test_the_command_makes_a_key_and_the_line_that_knows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert api_key.main(["acme"]) == 0
    captured = capsys.readouterr()
    path = tmp_path / "keys.txt"
    path.write_text(captured.err)
    assert ApiKeys(str(path), clock=Clock()).tenant_of(f"Bearer {captured.out.strip()}") == "acme"
    for words in ([], ["a", "b"], ["a\nb"], ["#a"], [" "]):
        with pytest.raises(ConfigError, match="name one tenant"):
            api_key.main(words)


def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.key"
    path.write_text("pl_mine\n")
    assert Credentials.from_files(None, api_key_file=str(path)).metadata == (("authorization", "Bearer pl_mine"),)
    path.write_text("two\nlines")
    with pytest.raises(ConfigError, match="must hold one key"):
        Credentials.from_files(None, api_key_file=str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        Credentials.from_files(None, api_key_file=str(tmp_path / "missing"))
