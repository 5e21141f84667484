"""A failed call's status as a typed error: what a service said, and whom it was asked of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from paceline.errors import (
    CapacityError,
    InvalidInputError,
    MismatchError,
    PacelineError,
    UnavailableError,
    UnsupportedFieldError,
)


class RequestCancelledError(PacelineError):
    """The request was cancelled, by its client or by the service."""

    code = grpc.StatusCode.CANCELLED
    exit_code = 130


class DeadlineError(PacelineError):
    """The answer did not come in the time that the client allowed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    exit_code = 5


class ServiceFailureError(PacelineError):
    """The service failed in a way that it has no better word for; its log says more."""


_ERRORS: dict[grpc.StatusCode, type[PacelineError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidInputError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedFieldError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: CapacityError,
    grpc.StatusCode.FAILED_PRECONDITION: MismatchError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}
_NOT_CONNECTED = "failed to connect"
_BROKEN = ("Socket closed", "Stream removed", "Connection reset", "GOAWAY")  # gRPC's own words, not the service's


@contextlib.contextmanager
def typed_errors(address: str) -> Iterator[None]:
    """Turns a failed call to address into a PacelineError."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_status(error, address) from error


def error_from_status(error: grpc.RpcError, address: str) -> PacelineError:
    """The typed error of a failed call to address; its message is the service's own where it sent one."""
    code, details = error.code(), error.details() or ""
    kind = _ERRORS.get(code, ServiceFailureError)
    if code == grpc.StatusCode.UNAVAILABLE and _NOT_CONNECTED in details:
        return kind(f"nothing answers at {address}: start it (paceline serve) or name the right address")
    if code == grpc.StatusCode.UNAVAILABLE and any(words in details for words in _BROKEN):
        return kind(f"the connection to {address} broke ({details}): see whether it still runs")
    if kind is ServiceFailureError:
        return kind(f"{address} answered {code.name}: {details or 'no message'}; look into its log")
    return kind(details or f"{address} answered {code.name}")
