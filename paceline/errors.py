"""Errors with a status: what a caller did wrong or what is missing, and what to do about it."""

from __future__ import annotations

import grpc

RETRY_AFTER_KEY = "retry-after-ms"  # trailing metadata of a RESOURCE_EXHAUSTED: milliseconds, a whole number


class PacelineError(Exception):
    """Base of all errors that a user or a peer may see. The message names the value and what to do."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    exit_code: int = 1


class InvalidInputError(PacelineError):
    """A value is out of its range or does not parse."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    exit_code = 2


class UnsupportedFieldError(PacelineError):
    """A field that is reserved for a later feature was set."""

    code = grpc.StatusCode.UNIMPLEMENTED
    exit_code = 2


class ConfigError(PacelineError):
    """A flag or a file that a service was started with does not fit."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    exit_code = 2


class ModelLoadError(PacelineError):
    """A model, head or tokenizer file is missing, damaged or of an unknown kind."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    exit_code = 3


class OutOfPagesError(PacelineError):
    """No KV pages are left for what was asked; nothing was taken."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class CapacityError(PacelineError):
    """The service is full for now; try again later or elsewhere. retry_after_s: when it may have room, where known."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineError(PacelineError):
    """The answer did not come in the time allowed, or cannot."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    exit_code = 5


class UnavailableError(PacelineError):
    """A peer that is needed cannot be reached or is draining."""

    code = grpc.StatusCode.UNAVAILABLE
    exit_code = 4


class MismatchError(PacelineError):
    """Two services do not fit together: another model, head or feature_id."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    exit_code = 3


class WireError(PacelineError):
    """A message does not parse: array lengths, tensor shapes or references disagree."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class AccessError(PacelineError):
    """The caller did not say who it is, or not so that it could be believed."""

    code = grpc.StatusCode.UNAUTHENTICATED
    exit_code = 6


class ForbiddenError(AccessError):
    """The caller is known, and may not do what it asked for."""

    code = grpc.StatusCode.PERMISSION_DENIED
