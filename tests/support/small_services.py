"""Small real programs that stand where the services would: they speak the launcher's part of the contract."""

from __future__ import annotations

import textwrap
from pathlib import Path

SERVICE = """
    import argparse, signal, socket, sys
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    args, rest = parser.parse_known_args()
    server = socket.create_server(("127.0.0.1", args.port))
    print("started with", *rest, file=sys.stderr, flush=True)
    print(f"ready 127.0.0.1:{server.getsockname()[1]}", flush=True)
    signal.sigwait({signal.SIGTERM})
    print("drained", flush=True)
"""
ROUTER = """
    import argparse, signal, sys
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from concurrent import futures
    import grpc
    from paceline.v1 import common_pb2, router_pb2, router_pb2_grpc
    parser = argparse.ArgumentParser()
    for name in ("port", "targets", "drafts", "unlinked", "refused"):
        parser.add_argument("--" + name, default="")
    parser.add_argument("--check", action="store_true")
    args, rest = parser.parse_known_args()
    if args.check:
        sys.exit("router: --unlinked must be said" if args.unlinked == "badly" else 0)
    class Servicer(router_pb2_grpc.RouterServiceServicer):
        def GetInfo(self, request, context):
            state = {"ready": not (args.unlinked or args.refused), "message": args.unlinked or args.refused}
            if args.refused:
                state["info"] = common_pb2.ServiceInfo(service="draft")
            targets, drafts = (
                [router_pb2.ReplicaState(address=address, **state) for address in addresses.split(",") if address]
                for addresses in (args.targets, args.drafts)
            )
            return router_pb2.RouterServiceGetInfoResponse(targets=targets, drafts=drafts)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    router_pb2_grpc.add_RouterServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:" + args.port)
    server.start()
    print("started with", *sys.argv[1:], file=sys.stderr, flush=True)
    print(f"ready 127.0.0.1:{port}", flush=True)
    signal.sigwait({signal.SIGTERM})
"""
PRESSED_TWICE = """
    import os, signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getppid(), signal.SIGINT)
    signal.sigwait({signal.SIGTERM})
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
"""
IMPATIENT_ROUTER = (
    ROUTER
    + """
    import os
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
"""
)
STUBBORN = SERVICE.replace("sigwait({signal.SIGTERM})", "pause()")
REFUSES = """
    import sys
    print("a line of log", file=sys.stderr)
    sys.exit(print("target: --dtype is int3; it must be bfloat16", file=sys.stderr) or 2)
"""
CRASHES = "raise RuntimeError('a bug of ours')"
SILENT = "import time; time.sleep(60)"
PARENT_OF_ANOTHER = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(f"ready {child.pid}:1", flush=True)
    time.sleep(60)
"""
PROGRAMS = {
    "service": SERVICE,
    "small_router": ROUTER,
    "impatient_router": IMPATIENT_ROUTER,  # never drained, it has the launcher's user press Ctrl-C
    "pressed_twice": PRESSED_TWICE,  # Ctrl-C at its start and at its end, which does not come
    "stubborn": STUBBORN,
    "refuses": REFUSES,
    "crashes": CRASHES,
    "silent": SILENT,
    "parent_of_another": PARENT_OF_ANOTHER,
}


def write_programs(folder: Path) -> None:
    """Modules that ``python -m`` finds where folder is in PYTHONPATH."""
    for name, source in PROGRAMS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
