"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from .base import Base, Tries
from .errors import PunctualError
from .http_sync import HttpTransport
from .messages import Inputs, Model, ModelMetadata, Parameter, Request, Result, ServerMetadata
from .retry import Retry
from .transport import Clock, Transport


class Client(Base):
    """A server's models, for threads. One client serves all threads of a process; it keeps its connections.

    >>> with Client("http://localhost:8000") as client:  # doctest: +SKIP
    ...     client.infer("resnet50", images, deadline_ms=50).array
    """

    _transport_kept: Transport | None = None

    def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        deadline_ms: float | None = None,
        version: str = "",
        outputs: str | Sequence[str] | None = None,
        priority: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
        retry: Retry | None = None,
    ) -> Result:
        """Computes.

        Args:
            model: The model's name.
            inputs: One array, if the model has one input; a dict of arrays by name; or a list or tuple of arrays in the
                model's order. Whatever ``numpy.asarray`` takes is an array. Types are converted to the model's where no
                value is lost.
            deadline_ms: How long the caller is willing to wait, in milliseconds from now; None: as the client was told.
            version: The model's version; by default the highest one that is ready.
            outputs: The outputs that are wanted; by default all.
            priority: 1 is the most urgent; by default the model's own level.
            request_id: Comes back with the result, and is in the server's traces.
            parameters: Sent along as they are.
            retry: Whether and how to ask again after refusals; by default not.

        Raises:
            PunctualError: One of its subclasses; see ``punctual.errors``.
        """
        tries = Tries(retry, self._deadline_ms if deadline_ms is None else deadline_ms)
        while True:
            clock = self._clock(tries.deadline_ms)
            try:
                return self._infer(clock, model, version, inputs, outputs, parameters, priority, request_id)
            except PunctualError as error:
                again = tries.after(error)
                if again is None:
                    raise
            time.sleep(again.wait_s)

    def _infer(
        self,
        clock: Clock,
        model: str,
        version: str,
        inputs: Inputs,
        outputs: str | Sequence[str] | None,
        parameters: Mapping[str, Parameter] | None,
        priority: int | None,
        request_id: str,
    ) -> Result:
        while True:
            known = self._known.get((model, version))
            metadata = known or self._metadata(model, version, clock)
            try:
                request = Request.build(metadata, version, inputs, outputs, parameters, priority, request_id)
                return self._transport().infer(request, clock)
            except PunctualError as error:
                # The model may have changed since it was asked for its metadata. What is bad input was never computed, so
                # that asking again is safe.
                forgotten = self._forget(model, version, error)
                if not forgotten or known is None or self._metadata(model, version, clock) == known:
                    raise

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives, as it is now."""
        return self._metadata(model, version, self._clock())

    def server_metadata(self) -> ServerMetadata:
        """Who the server is and what it can do."""
        return self._transport().server_metadata(self._clock())

    def models(self) -> list[Model]:
        """What is in the server's repository."""
        return self._transport().models(self._clock())

    def live(self) -> bool:
        """Whether the server is up. False too where it can't be reached."""
        try:
            return self._transport().live(self._clock())
        except PunctualError:
            return False

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether the server takes requests, or can be asked for a model. False too where it can't be reached."""
        try:
            if model:
                return self._transport().model_ready(model, version, self._clock())
            return self._transport().ready(self._clock())
        except PunctualError:
            return False

    def close(self) -> None:
        """Closes the connections."""
        if self._transport_kept is not None:
            self._transport_kept.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata:
        metadata = self._transport().model_metadata(model, version, clock)
        self._known[model, version] = metadata
        return metadata

    def _transport(self) -> Transport:
        if self._transport_kept is None:
            if self._options.is_grpc:
                from .grpc import GrpcTransport

                self._transport_kept = GrpcTransport(self._options)
            else:
                self._transport_kept = HttpTransport(self._options)
        return self._transport_kept
