"""Python client of Paceline, sync and async, and the ``paceline`` command. Imports ``paceline`` only, never torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.aio import AsyncGeneration, AsyncPacelineClient
    from client.client import Generation, PacelineClient
    from client.completion import Completion, Delta
    from client.credentials import Credentials
    from client.errors import RequestCancelledError, ServiceFailureError
    from client.request import GenerateOptions, Message, Sampling
    from paceline.errors import DeadlineError
    from paceline.stats import SpeculationStats
    from paceline.types import TreeShape

_HOMES = {
    "client.aio": ("AsyncGeneration", "AsyncPacelineClient"),
    "client.client": ("Generation", "PacelineClient"),
    "client.completion": ("Completion", "Delta"),
    "client.credentials": ("Credentials",),
    "client.errors": ("RequestCancelledError", "ServiceFailureError"),
    "client.request": ("GenerateOptions", "Message", "Sampling"),
    "paceline.errors": ("DeadlineError",),
    "paceline.stats": ("SpeculationStats",),
    "paceline.types": ("TreeShape",),
}

__all__ = [
    "AsyncGeneration",
    "AsyncPacelineClient",
    "Completion",
    "Credentials",
    "DeadlineError",
    "Delta",
    "GenerateOptions",
    "Generation",
    "Message",
    "PacelineClient",
    "RequestCancelledError",
    "Sampling",
    "ServiceFailureError",
    "SpeculationStats",
    "TreeShape",
]

if not TYPE_CHECKING:
    # gRPC takes half a second to import, during which the command must already know what to do at Ctrl-C.
    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)
