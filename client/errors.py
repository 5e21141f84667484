"""A failed call's status as a typed error: what a service said, and whom it was asked of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import grpc

from client.departed import has_ended
from client.mistaken import mistaken_service
from paceline.errors import (
    RETRY_AFTER_KEY,
    AccessError,
    CapacityError,
    DeadlineError,
    ForbiddenError,
    InvalidInputError,
    MismatchError,
    PacelineError,
    UnavailableError,
    UnsupportedFieldError,
)
from paceline.link_fault import connection_broke, link_fault, nothing_answers
from paceline.tls import TlsIdentity
from paceline.tls_fault import tls_fault


class RequestCancelledError(PacelineError):
    """The request was cancelled, by its client or by the service."""

    code = grpc.StatusCode.CANCELLED
    exit_code = 130


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
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
}
_LOOKED_INTO = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)
_NOT_THERE = ': start it (paceline serve), wait until serve says "serving" if it has begun, or name the right address'
_TOO_LARGE = "Sent message larger than max"
_CANCELLED = ("Locally cancelled", "Channel closed")  # gRPC's own words


@contextlib.contextmanager
def typed_errors(address: str, tls: TlsIdentity | None = None) -> Iterator[None]:
    """Turns a failed call to address into a PacelineError. tls: what the call was made with."""
    try:
        yield
    except grpc.RpcError as error:
        raise _explained(error, address, tls) from error


@contextlib.asynccontextmanager
async def typed_errors_aio(address: str, tls: TlsIdentity | None = None) -> AsyncIterator[None]:
    """The same on an event loop, which goes on while the connection is looked into."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() not in _LOOKED_INTO:
            raise error_from_status(error, address) from error
        raise await asyncio.to_thread(_explained, error, address, tls) from error


def error_from_status(error: grpc.RpcError, address: str) -> PacelineError:
    """The typed error of a failed call to address; its message is the service's own where it sent one."""
    code, details = error.code(), error.details() or ""
    kind = _ERRORS.get(code, ServiceFailureError)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return InvalidInputError(f"the request is too large to send ({details}): give a shorter prompt")
    if fault := link_fault(code, details, address):
        kind = UnavailableError if code == grpc.StatusCode.UNIMPLEMENTED else kind
        return kind(fault + _NOT_THERE if fault == nothing_answers(address) else fault)
    if code == grpc.StatusCode.CANCELLED and details.startswith(_CANCELLED):
        return kind("the request was cancelled")
    if kind is ServiceFailureError:
        return kind(f"{address} answered {code.name}: {details or 'no message'}; look into its log")
    message = details or f"{address} answered {code.name}"
    return CapacityError(message, retry_after_s=retry_after_s(error)) if kind is CapacityError else kind(message)


def retry_after_s(error: grpc.RpcError) -> float | None:
    """The service's word on when to try again; None where it gave none."""
    pairs: Iterable[Any] = error.trailing_metadata() or ()
    value = dict(pairs).get(RETRY_AFTER_KEY)
    return int(value) / 1e3 if isinstance(value, str) and value.isdecimal() else None


def _explained(error: grpc.RpcError, address: str, tls: TlsIdentity | None) -> PacelineError:
    """With what the other end's certificates, health and port say, where they are why; may take seconds."""
    if error.code() is grpc.StatusCode.UNAVAILABLE and (fault := tls_fault(address, tls, error.details() or "")):
        return UnavailableError(f"no connection to {address}: {fault}")
    if mistake := mistaken_service(error, address, tls):
        return InvalidInputError(mistake)
    explained = error_from_status(error, address)
    if str(explained) == connection_broke(address) and has_ended(address):
        return UnavailableError(f"the service at {address} has ended in mid-answer: ask again once it runs again")
    return explained
