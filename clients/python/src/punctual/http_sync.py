"""HTTP for threads: blocking sockets that are kept and used again."""

from __future__ import annotations

import collections
import socket
import ssl

from . import http
from .errors import NoAnswer, NoConnection, PunctualError
from .http import Reader
from .messages import Model, ModelMetadata, Request, Result, ServerMetadata
from .tensors import Buffer
from .transport import Clock, Options

# The system takes no more pieces at once.
_PIECES = 512


class HttpTransport:
    """A pool of connections. Any number of threads may use it: each takes a connection for the time of its call."""

    def __init__(self, options: Options) -> None:
        self._address = http.Address.of(options.url)
        self._writer = http.Writer(self._address, options.headers)
        self._tls = (options.ssl_context or ssl.create_default_context()) if self._address.tls else None
        # Popping and appending at one end is atomic: no lock is needed. The bound drops what is beyond it.
        self._idle: collections.deque[socket.socket] = collections.deque()
        self._keep = options.connections
        self._closed = False

    def live(self, clock: Clock) -> bool:
        """Whether the process is up."""
        return http.yes(self._call(self._writer.get("/v2/health/live"), clock))

    def ready(self, clock: Clock) -> bool:
        """Whether it takes requests."""
        return http.yes(self._call(self._writer.get("/v2/health/ready"), clock))

    def model_ready(self, model: str, version: str, clock: Clock) -> bool:
        """Whether a model can be asked."""
        return http.yes(self._call(self._writer.get(http.model_path(model, version) + "/ready"), clock))

    def server_metadata(self, clock: Clock) -> ServerMetadata:
        """Who the server is."""
        return http.server_metadata(self._call(self._writer.get("/v2"), clock))

    def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata:
        """What a model takes and gives."""
        return http.model_metadata(self._call(self._writer.get(http.model_path(model, version)), clock))

    def models(self, clock: Clock) -> list[Model]:
        """What is in the repository."""
        return http.models(self._call(self._writer.post("/v2/repository/index", {}), clock))

    def infer(self, request: Request, clock: Clock) -> Result:
        """Computes."""
        return http.result(self._call(request, clock))

    def close(self) -> None:
        """Closes the connections that nobody uses; the others are closed when their calls end."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _call(self, asked: list[Buffer] | Request, clock: Clock) -> Reader:
        broke: OSError | None = None
        while True:
            try:
                connection, used_before = self._idle.pop(), True
            except IndexError:
                connection, used_before = self._connect(clock, broke), False
            answer = Reader()
            try:
                _exchange(connection, self._writer.pieces(asked, clock), answer, clock)
            except PunctualError:
                connection.close()
                raise
            except TimeoutError as error:
                connection.close()
                raise NoAnswer(f"{self._address} said nothing in time") from error
            except OSError as error:
                connection.close()
                if used_before and not answer.begun:
                    # The server closes connections that are idle for long; then the request was never seen.
                    broke = error
                    continue
                raise NoConnection(f"the connection to {self._address} broke: {error}") from error
            except BaseException:
                connection.close()
                raise
            if answer.reusable and not self._closed and len(self._idle) < self._keep:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _connect(self, clock: Clock, broke: OSError | None) -> socket.socket:
        if self._closed:
            raise NoConnection("the client was closed")
        left = clock.left_s()
        try:
            limit = None if left is None else max(left, 0.001)
            connection = socket.create_connection((self._address.host, self._address.port), limit)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(connection, server_hostname=self._address.host)
        except TimeoutError as error:
            raise NoAnswer(f"{self._address} could not be reached in time") from error
        except OSError as error:
            raise self._address.unreachable(error, broke) from error
        return connection


def _exchange(connection: socket.socket, pieces: list[Buffer], answer: Reader, clock: Clock) -> None:
    """Sends a request and receives its answer."""
    _limit(connection, clock)
    if len(pieces) == 1 or isinstance(connection, ssl.SSLSocket):
        for piece in pieces:
            connection.sendall(piece)
    else:
        _send_pieces(connection, pieces)
    while not answer.complete:
        _limit(connection, clock)
        count = connection.recv_into(answer.buffer())
        if count == 0:
            if not answer.ended():
                raise ConnectionResetError("it was closed before the answer was complete")
            return
        answer.received(count)


def _limit(connection: socket.socket, clock: Clock) -> None:
    left = clock.left_s()
    if left is not None and left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _send_pieces(connection: socket.socket, pieces: list[Buffer]) -> None:
    """Sends all pieces from where they lie."""
    rest = [memoryview(piece) for piece in pieces if len(piece)]
    while rest:
        sent = connection.sendmsg(rest[:_PIECES])
        while sent:
            if sent < len(rest[0]):
                rest[0] = rest[0][sent:]
                break
            sent -= len(rest.pop(0))
