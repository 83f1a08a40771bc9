"""Every way in which a call can end without an answer.

The server names a reason for each refusal; each reason has a class of its own here. ``PunctualError`` is above all of them,
``DeadlineError`` above those about time, ``Unavailable`` above those that may pass by themselves.
"""

from __future__ import annotations

from typing import ClassVar


class PunctualError(Exception):
    """There is no answer. The text is the server's sentence: what was wrong with which value, and what to do."""

    #: The server's word for it, which metrics and logs of the server use too.
    reason: str = "error"
    #: The smallest deadline that could have been met, in milliseconds from the request's arrival, where the server knows it.
    earliest_deadline_ms: float | None = None
    #: After how many seconds it is worth asking again, where the server says so.
    retry_after: float | None = None
    #: The status: a number over HTTP, a name over gRPC, None where the server wasn't reached.
    status: int | str | None = None

    #: The classes by the server's reasons.
    by_reason: ClassVar[dict[str, type[PunctualError]]] = {}

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        earliest_deadline_ms: float | None = None,
        retry_after: float | None = None,
        status: int | str | None = None,
    ) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        self.earliest_deadline_ms = earliest_deadline_ms
        self.retry_after = retry_after
        self.status = status

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" in cls.__dict__:
            PunctualError.by_reason[cls.reason] = cls

    def __reduce__(self) -> tuple[object, ...]:
        # Pickling (multiprocessing, Ray, Dask) must not lose what the error carries.
        return _again, (type(self), str(self), self.__dict__.copy())


def _again(kind: type[PunctualError], message: str, state: dict[str, object]) -> PunctualError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class DeadlineError(PunctualError, TimeoutError):
    """The deadline can't be kept, or wasn't."""


class DeadlineUnreachable(DeadlineError):
    """Even an idle server could not answer in time: ``earliest_deadline_ms`` says what it could."""

    reason = "deadline_unreachable"


class DeadlineMissed(DeadlineError):
    """It was planned, but no answer came in time; or the time was over before the request could be sent."""

    reason = "deadline_missed"


class Unavailable(PunctualError):
    """Not now; most of these pass by themselves."""


class Overloaded(Unavailable):
    """Others are ahead, and behind them the answer would come too late."""

    reason = "overloaded"


class QueueFull(Unavailable):
    """A bound of the server was reached."""

    reason = "queue_full"


class NoDevice(Unavailable):
    """The server has no device to compute on."""

    reason = "no_device"


class ShuttingDown(Unavailable):
    """The server is going down."""

    reason = "shutting_down"


class NotReady(Unavailable):
    """The server isn't ready yet."""

    reason = "not_ready"


class NotLive(Unavailable):
    """Something that everybody waits for stands still."""

    reason = "not_live"


class TooManyConnections(Unavailable):
    """The server has as many connections as it takes."""

    reason = "too_many_connections"


class ClientLimit(Unavailable):
    """This client has as much of the server as one client may have; the text says which limit it is."""

    reason = "client_limit"


class ModelLoading(Unavailable):
    """The model is being prepared."""

    reason = "model_loading"


class ModelBroken(Unavailable):
    """The model's file or configuration can't be used; the text says why."""

    reason = "model_broken"


class LoadFailed(PunctualError):
    """A client asked for a model to be loaded, and it can't be; the text says why."""

    reason = "load_failed"


class ModelNotFound(PunctualError, LookupError):
    """The server has no such model or version."""

    reason = "model_not_found"


class ModelUnavailable(PunctualError, LookupError):
    """The model was taken away while the request waited."""

    reason = "model_unavailable"


class BadInput(PunctualError, ValueError):
    """The request isn't what the model or the protocol asks for."""

    reason = "bad_input"


class BodyTooLarge(BadInput):
    """The request is larger than the server takes."""

    reason = "body_too_large"


class NotFound(PunctualError):
    """The server has no such path: is it a Punctual server, and new enough?"""

    reason = "not_found"


class MethodNotAllowed(PunctualError):
    """The server has the path, but not with this method."""

    reason = "method_not_allowed"


class UnsupportedEncoding(PunctualError):
    """The body is compressed in a way that the server doesn't know."""

    reason = "unsupported_encoding"


class Unsupported(PunctualError):
    """What was asked for is part of the protocol, but not of this server."""

    reason = "unsupported"


class Unauthenticated(PunctualError, PermissionError):
    """The server asks for a key, and this is none of its keys."""

    reason = "unauthenticated"


class Forbidden(PunctualError, PermissionError):
    """Whoever asks has no right to it; the text says which right is missing."""

    reason = "forbidden"


class AlreadyExists(PunctualError):
    """Something of that name is there already."""

    reason = "already_exists"


class RegionNotFound(PunctualError, LookupError):
    """The server knows no region of shared memory by that name."""

    reason = "region_not_found"


class ExecutionFailed(PunctualError):
    """The engine could not compute it."""

    reason = "execution_failed"


class BrokenOff(PunctualError):
    """It was computed for longer than the server allows, and broken off."""

    reason = "broken_off"


class NoConnection(PunctualError, ConnectionError):
    """The server can't be reached, or went away before it answered. Found by the client."""

    reason = "no_connection"


class NoAnswer(PunctualError, TimeoutError):
    """The server said nothing in time, not even no. Found by the client."""

    reason = "no_answer"


class BadAnswer(PunctualError):
    """What came back isn't this protocol. Found by the client."""

    reason = "bad_answer"


def refusal(
    message: str,
    reason: str | None,
    status: int | str,
    *,
    earliest_deadline_us: float | None = None,
    retry_after: float | None = None,
) -> PunctualError:
    """The error for a refusal. A reason that this version doesn't know becomes a ``PunctualError`` that names it."""
    kind = PunctualError.by_reason.get(reason or "", PunctualError)
    return kind(
        message,
        reason=reason or "error",
        earliest_deadline_ms=None if earliest_deadline_us is None else earliest_deadline_us / 1000,
        retry_after=retry_after,
        status=status,
    )
