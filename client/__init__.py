"""Python client of Paceline, sync and async, and the ``paceline`` command. Imports ``paceline`` only, never torch."""

from client.aio import AsyncGeneration, AsyncPacelineClient
from client.client import Generation, PacelineClient
from client.completion import Completion, Delta
from client.credentials import Credentials
from client.errors import RequestCancelledError, ServiceFailureError
from client.request import GenerateOptions, Message, Sampling
from paceline.errors import DeadlineError
from paceline.stats import SpeculationStats
from paceline.types import TreeShape

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
