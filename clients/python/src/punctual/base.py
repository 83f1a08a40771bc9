"""What the two clients have in common."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping

from .errors import BadInput, ModelNotFound, PunctualError
from .messages import ModelMetadata
from .retry import Again, Retry
from .transport import Clock, Options


class Base:
    """Settings, and the metadata that is known already."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        deadline_ms: float | None = None,
        timeout_s: float | None = 60.0,
        grace_ms: float = 250.0,
        connections: int = 100,
        headers: Mapping[str, str] | None = None,
        application: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Connects on first use.

        Args:
            url: ``http://``, ``https://``, ``grpc://`` or ``grpcs://`` with host and port; ``host:port`` alone is HTTP.
            deadline_ms: The deadline of requests that name none, in milliseconds; None: they are batch work.
            timeout_s: How long to listen for an answer where there is no deadline, in seconds; None: for ever.
            grace_ms: How long to listen beyond a deadline, in milliseconds. The server answers by the deadline, with outputs
                or a refusal; this is for its way here.
            connections: Connections that are kept; asynchronous calls beyond wait for a free one.
            headers: Sent with every call, for instance ``{"authorization": "Bearer ..."}``.
            application: The application that the requests belong to; the server plans with what it knows of it.
            ssl_context: For ``https://`` and servers with certificates of their own. Not for gRPC.
        """
        if application is not None:
            headers = {**(headers or {}), "punctual-application": application}
        self._options = Options.of(url, headers, ssl_context, connections)
        self._deadline_ms = deadline_ms
        self._timeout_s = timeout_s
        self._grace_s = grace_ms / 1000
        self._known: dict[tuple[str, str], ModelMetadata] = {}

    def _clock(self, deadline_ms: float | None = None) -> Clock:
        return Clock(deadline_ms, self._grace_s, self._timeout_s)

    def _forget(self, model: str, version: str, error: PunctualError) -> bool:
        """Forgets metadata that a refusal casts doubt on. Says whether there was any: then another look may help."""
        if not isinstance(error, (BadInput, ModelNotFound)):
            return False
        return self._known.pop((model, version), None) is not None


class Tries:
    """The budget of a call that may be repeated."""

    def __init__(self, retry: Retry | None, deadline_ms: float | None) -> None:
        self._retry = retry
        self._attempt = 0
        self._end_at = time.monotonic() + (retry.budget_ms / 1000 if retry is not None else 0)
        #: The deadline of the next try.
        self.deadline_ms = deadline_ms
        if retry is not None:
            self.deadline_ms = min(deadline_ms or retry.budget_ms, retry.budget_ms)

    def after(self, error: PunctualError) -> Again | None:
        """What to do after a refusal; None: raise it."""
        self._attempt += 1
        if self._retry is None:
            return None
        again = self._retry.after(error, self._attempt, self.deadline_ms, (self._end_at - time.monotonic()) * 1000)
        if again is not None:
            self.deadline_ms = again.deadline_ms
        return again
