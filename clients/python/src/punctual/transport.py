"""What the clients need of a way to the server. Each protocol has one such class for threads and one for asyncio."""

from __future__ import annotations

import dataclasses
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from typing import Protocol

from .errors import DeadlineMissed
from .messages import Model, ModelMetadata, Request, Result, ServerMetadata


@dataclasses.dataclass(frozen=True)
class Options:
    """How to reach the server."""

    url: urllib.parse.SplitResult
    headers: Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    connections: int

    @classmethod
    def of(
        cls, url: str, headers: Mapping[str, str] | None, ssl_context: ssl.SSLContext | None, connections: int
    ) -> Options:
        """Options for a URL; ``host:port`` alone is HTTP."""
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https", "grpc", "grpcs"):
            raise ValueError(f'"{url}" begins with "{parts.scheme}": http, https, grpc and grpcs are there')
        if connections < 1:
            raise ValueError(f"connections is {connections}, but at least one is needed")
        return cls(parts, headers, ssl_context, connections)

    @property
    def is_grpc(self) -> bool:
        """Whether it is gRPC."""
        return self.url.scheme.startswith("grpc")


class Clock:
    """How much time a call has: until its deadline, and until its client stops listening."""

    __slots__ = ("_deadline_at", "_deadline_ms", "_give_up_at")

    def __init__(self, deadline_ms: float | None, grace_s: float, timeout_s: float | None) -> None:
        now = time.monotonic()
        if deadline_ms is not None and not deadline_ms > 0:
            raise ValueError(f"deadline_ms is {deadline_ms}: it must be above 0, or None for none")
        self._deadline_ms = deadline_ms
        self._deadline_at = None if deadline_ms is None else now + deadline_ms / 1000
        if self._deadline_at is not None:
            self._give_up_at: float | None = self._deadline_at + grace_s
        else:
            self._give_up_at = None if timeout_s is None else now + timeout_s

    def deadline_us(self) -> int | None:
        """What is left until the deadline, in whole microseconds: what the server is told."""
        if self._deadline_at is None:
            return None
        left = int((self._deadline_at - time.monotonic()) * 1e6)
        if left <= 0:
            raise DeadlineMissed(
                f"the {self._deadline_ms} ms were over before the request could be sent (connecting, asking for the model's "
                "metadata and waiting for a free connection count too)"
            )
        return left

    def left_s(self) -> float | None:
        """How long to listen yet, in seconds; None is for ever."""
        return None if self._give_up_at is None else self._give_up_at - time.monotonic()


class Transport(Protocol):
    """A way to the server for threads."""

    def live(self, clock: Clock) -> bool: ...
    def ready(self, clock: Clock) -> bool: ...
    def model_ready(self, model: str, version: str, clock: Clock) -> bool: ...
    def server_metadata(self, clock: Clock) -> ServerMetadata: ...
    def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata: ...
    def models(self, clock: Clock) -> list[Model]: ...
    def infer(self, request: Request, clock: Clock) -> Result: ...
    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """A way to the server for asyncio."""

    async def live(self, clock: Clock) -> bool: ...
    async def ready(self, clock: Clock) -> bool: ...
    async def model_ready(self, model: str, version: str, clock: Clock) -> bool: ...
    async def server_metadata(self, clock: Clock) -> ServerMetadata: ...
    async def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata: ...
    async def models(self, clock: Clock) -> list[Model]: ...
    async def infer(self, request: Request, clock: Clock) -> Result: ...
    async def close(self) -> None: ...
