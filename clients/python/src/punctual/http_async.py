"""HTTP for asyncio: connections that are kept and used again."""

from __future__ import annotations

import asyncio
import collections
import ssl

from . import http
from .errors import NoAnswer, NoConnection, PunctualError
from .http import Reader
from .messages import Model, ModelMetadata, Request, Result, ServerMetadata
from .tensors import Buffer
from .transport import Clock, Options


class _Connection(asyncio.BufferedProtocol):
    """One connection; asyncio puts what comes right where the answer wants it."""

    def __init__(self) -> None:
        self.open = True
        self.used_before = False
        self._transport: asyncio.Transport | None = None
        self._answer: Reader | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._nowhere = bytearray(1024)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._answer.buffer() if self._answer is not None else memoryview(self._nowhere)

    def buffer_updated(self, count: int) -> None:
        answer = self._answer
        if answer is None:
            # Nobody asked: whatever it is, this connection can't be trusted any more.
            self.close()
            return
        try:
            answer.received(count)
        except Exception as error:
            self._end(error)
            return
        if answer.complete:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._answer is not None:
            ended = self._answer.ended()
            self._end(None if ended else error or ConnectionResetError("it was closed before the answer was complete"))

    def close(self) -> None:
        """Closes it at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, pieces: list[Buffer], answer: Reader, clock: Clock) -> None:
        """Sends a request and receives its answer."""
        assert self._transport is not None, "asyncio has called connection_made before it handed this out"
        loop = asyncio.get_running_loop()
        self._answer = answer
        self._waiting = loop.create_future()
        left = clock.left_s()
        timer = None if left is None else loop.call_later(max(left, 0), self._end, asyncio.TimeoutError())
        try:
            for piece in pieces:
                self._transport.write(piece)
            await self._waiting
        finally:
            if timer is not None:
                timer.cancel()

    def _end(self, error: BaseException | None) -> None:
        waiting, self._waiting, self._answer = self._waiting, None, None
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)


class AsyncHttpTransport:
    """A pool of connections. Calls beyond ``connections`` wait for one that is free."""

    def __init__(self, options: Options) -> None:
        self._address = http.Address.of(options.url)
        self._writer = http.Writer(self._address, options.headers)
        self._tls = (options.ssl_context or ssl.create_default_context()) if self._address.tls else None
        self._connections = options.connections
        self._idle: collections.deque[_Connection] = collections.deque()
        self._free = asyncio.Semaphore(options.connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def live(self, clock: Clock) -> bool:
        """Whether the process is up."""
        return http.yes(await self._call(self._writer.get("/v2/health/live"), clock))

    async def ready(self, clock: Clock) -> bool:
        """Whether it takes requests."""
        return http.yes(await self._call(self._writer.get("/v2/health/ready"), clock))

    async def model_ready(self, model: str, version: str, clock: Clock) -> bool:
        """Whether a model can be asked."""
        return http.yes(await self._call(self._writer.get(http.model_path(model, version) + "/ready"), clock))

    async def server_metadata(self, clock: Clock) -> ServerMetadata:
        """Who the server is."""
        return http.server_metadata(await self._call(self._writer.get("/v2"), clock))

    async def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata:
        """What a model takes and gives."""
        return http.model_metadata(await self._call(self._writer.get(http.model_path(model, version)), clock))

    async def models(self, clock: Clock) -> list[Model]:
        """What is in the repository."""
        return http.models(await self._call(self._writer.post("/v2/repository/index", {}), clock))

    async def infer(self, request: Request, clock: Clock) -> Result:
        """Computes."""
        return http.result(await self._call(request, clock))

    async def close(self) -> None:
        """Closes all connections that nobody uses."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _call(self, asked: list[Buffer] | Request, clock: Clock) -> Reader:
        self._belong_to(asyncio.get_running_loop())
        try:
            if self._free.locked():
                await asyncio.wait_for(self._free.acquire(), clock.left_s())
            else:
                await self._free.acquire()
        except asyncio.TimeoutError as error:
            raise NoAnswer(f"all {self._connections} connections to {self._address} were busy for too long") from error
        free = self._free
        try:
            return await self._on_a_connection(asked, clock)
        finally:
            free.release()

    async def _on_a_connection(self, asked: list[Buffer] | Request, clock: Clock) -> Reader:
        broke: OSError | None = None
        while True:
            connection = self._take() or await self._connect(clock, broke)
            answer = Reader()
            try:
                await connection.exchange(self._writer.pieces(asked, clock), answer, clock)
            except PunctualError:
                connection.close()
                raise
            except asyncio.TimeoutError as error:
                connection.close()
                raise NoAnswer(f"{self._address} said nothing in time") from error
            except OSError as error:
                connection.close()
                if connection.used_before and not answer.begun:
                    # The server closes connections that are idle for long; then the request was never seen.
                    broke = error
                    continue
                raise NoConnection(f"the connection to {self._address} broke: {error}") from error
            except BaseException:
                # Also when the caller was cancelled: a closed connection takes the request out of the server's plan.
                connection.close()
                raise
            if answer.reusable and connection.open and not self._closed:
                connection.used_before = True
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self, clock: Clock, broke: OSError | None) -> _Connection:
        if self._closed:
            raise NoConnection("the client was closed")
        address = self._address
        connecting = asyncio.get_running_loop().create_connection(_Connection, address.host, address.port, ssl=self._tls)
        try:
            _, connection = await asyncio.wait_for(connecting, clock.left_s())
        except asyncio.TimeoutError as error:
            raise NoAnswer(f"{self._address} could not be reached in time") from error
        except OSError as error:
            raise self._address.unreachable(error, broke) from error
        return connection

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connections belong to an event loop: those of one that is over (`asyncio.run` made it) are forgotten."""
        if self._loop is not loop:
            self._loop = loop
            self._idle = collections.deque()
            self._free = asyncio.Semaphore(self._connections)
