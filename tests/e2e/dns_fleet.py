"""Run by test_dns_discovery.py under unshare: real services behind headless names, replaced one by one under load."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from client.client import PacelineClient
from client.process import ServiceProcess
from client.request import GenerateOptions, Sampling
from paceline.errors import PacelineError
from tests.support.dns_server import DnsServer, enter_own_network
from tests.support.services import PATIENT

PROMPTS = ([7, 8, 9], [100, 200, 300, 400], [5000], [42] * 8)
SAMPLING = Sampling(max_tokens=24, ignore_eos=True, temperature=0.0)
START_S, SERVE_S = 240.0, 60.0


class Load:
    """Workers that ask again and again and hold the tokens against plain decoding's."""

    def __init__(self, client: PacelineClient) -> None:
        self.answers = 0
        self.wrong = 0
        self.failures: list[str] = []
        self._client = client
        self._plain = [tokens(client, index, speculation=False) for index in range(len(PROMPTS))]
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(index,)) for index in range(len(PROMPTS))]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Returns once so many more answers came."""
        wanted = self.answers + count
        until(lambda: self.answers >= wanted or bool(self.failures), "more answers")

    def _work(self, index: int) -> None:
        while not self._stopped.is_set():
            try:
                self.wrong += tokens(self._client, index) != self._plain[index]
            except PacelineError as error:
                self.failures.append(str(error))
            self.answers += 1


def tokens(client: PacelineClient, index: int, *, speculation: bool | None = None) -> tuple[int, ...]:
    options = GenerateOptions(speculation=speculation)
    return client.generate(PROMPTS[index], sampling=SAMPLING, options=options).result().token_ids


def until(holds: Callable[[], bool], what: str) -> float:
    """Seconds until it held."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < SERVE_S, f"not in time: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


def main(folder: Path) -> dict[str, object]:
    with ExitStack() as stack:
        names = stack.enter_context(DnsServer())

        def start(module: str, host: str, port: int, *flags: str) -> ServiceProcess:
            log = folder / f"{module}-{host}.log"
            given = ["--host", host, "--drain-timeout-s", "20", *flags]
            process = ServiceProcess(module, module, flags=given, port=port, log_path=log)
            stack.callback(process.kill)
            process.start()
            process.wait_ready(time.monotonic() + START_S)
            return process

        engine = ("--dtype", "float32", "--num-threads", "1")
        target = start("target_service", "127.0.0.1", 7200, *engine, *PATIENT)
        draft = start("draft_service", "127.0.0.2", 7300, *engine)
        names.set("targets.test", "127.0.0.1")
        names.set("drafts.test", "127.0.0.2")
        sources = ("--targets", "dns:///targets.test:7200", "--drafts", "dns:///drafts.test:7300")
        router = start("router", "127.0.0.1", 7100, *sources)
        client = stack.enter_context(PacelineClient(router.address, request_timeout_s=120))
        until(lambda: all(state.ready for state in [*client.info().targets, *client.info().drafts]), "links")

        def serving(address: str) -> bool:
            info = client.info()
            return any(s.address == address and s.running_requests for s in [*info.targets, *info.drafts])

        report: dict[str, object] = {}
        with Load(client) as load:
            load.more(4)
            start("draft_service", "127.0.0.3", 7300, *engine)
            names.set("drafts.test", "127.0.0.2", "127.0.0.3")
            report["draft_serves_after_s"] = until(lambda: serving("127.0.0.3:7300"), "the new draft's first session")
            names.set("drafts.test", "127.0.0.3")
            draft.terminate()
            load.more(6)
            start("target_service", "127.0.0.4", 7200, *engine, *PATIENT)
            names.set("targets.test", "127.0.0.1", "127.0.0.4")
            report["target_serves_after_s"] = until(lambda: serving("127.0.0.4:7200"), "the new target's first request")
            names.set("targets.test", "127.0.0.4")
            target.terminate()
            load.more(6)
            until(lambda: len(client.info().targets) == 1, "the old target's end")
        report |= {"answers": load.answers, "wrong": load.wrong, "failures": load.failures}
        report |= {"draft_exit": draft.exit_code, "target_exit": target.exit_code}
        return report


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, suppress(KeyboardInterrupt):
        enter_own_network(Path(scratch))
        print(json.dumps(main(Path(scratch))), flush=True)
        sys.stdout.flush()
