"""How a target says that a request ended."""

from __future__ import annotations

import grpc

from paceline.errors import PacelineError
from paceline.types import FinishReason

_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class TargetError(PacelineError):
    """A target gave a request up; its own status code and message go to the client."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def end_of(reason: FinishReason, status_code: int, status_message: str) -> FinishReason | PacelineError:
    """The outcome that a Finish gives."""
    if reason is not FinishReason.ERROR:
        return reason
    code = _STATUS.get(status_code, grpc.StatusCode.INTERNAL)
    if code is grpc.StatusCode.OK:
        code = grpc.StatusCode.INTERNAL
    return TargetError(code, status_message or "the target failed without a message; look into its log")
