"""The protocol over HTTP/1.1, without any IO: bytes of requests, and the reading of answers. Both clients use it."""

from __future__ import annotations

import dataclasses
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

import httptools
import numpy as np

from .errors import BadAnswer, NoConnection, PunctualError, refusal
from .messages import Model, ModelMetadata, Request, Result, ServerMetadata, Tensor
from .tensors import Array, Buffer, from_json, from_wire
from .transport import Clock

# Requests up to this size are sent in one piece: a copy costs less than a second call of the system.
_JOINED_BYTES = 64 * 1024
# What is read at once until the head of the answer is known. Small answers are complete with it.
_SCRATCH_BYTES = 16 * 1024


@dataclasses.dataclass(frozen=True)
class Address:
    """Where the server is."""

    host: str
    port: int
    tls: bool
    #: What comes in front of ``/v2``, for servers behind a proxy.
    prefix: str

    @classmethod
    def of(cls, url: urllib.parse.SplitResult) -> Address:
        """The address of an http:// or https:// URL."""
        tls = url.scheme == "https"
        if not url.hostname:
            raise ValueError(f'"{url.geturl()}" names no host: it should look like http://localhost:8000')
        return cls(url.hostname, url.port or (443 if tls else 80), tls, url.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"

    def unreachable(self, error: OSError, broke: OSError | None) -> NoConnection:
        """Nobody takes a connection; `broke`: what became of the one on which the request was sent before."""
        if broke is None:
            return NoConnection(f"{self} can't be reached: {error}")
        return NoConnection(f"the connection to {self} broke: {broke}; now it can't be reached: {error}")


class Writer:
    """Makes the bytes of requests."""

    def __init__(self, address: Address, headers: Mapping[str, str] | None) -> None:
        self._prefix = address.prefix
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = {"host": f"{host}:{address.port}", "accept": "*/*", **(headers or {})}
        for name, value in lines.items():
            if any(end in name + value for end in "\r\n\0"):
                raise ValueError(f"the header {name!r} may not contain line ends")
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in lines.items())

    def get(self, path: str) -> list[Buffer]:
        """A GET of a path."""
        return [f"GET {self._prefix}{path} HTTP/1.1\r\n{self._fixed}\r\n".encode()]

    def post(self, path: str, body: Any) -> list[Buffer]:
        """A POST of JSON."""
        text = json.dumps(body).encode()
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fixed}content-length: {len(text)}\r\n\r\n"
        return [head.encode() + text]

    def pieces(self, asked: list[Buffer] | Request, clock: Clock) -> list[Buffer]:
        """What is sent, now that there is a connection: the server is told what is left of the time."""
        if not isinstance(asked, Request):
            return asked
        timeout_us = clock.deadline_us()
        if timeout_us is not None:
            asked.parameters["timeout"] = timeout_us
        return self.infer(asked)

    def infer(self, request: Request) -> list[Buffer]:
        """A request to compute, in pieces: the tensors are where the caller has them."""
        inputs = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(data)},
            }
            for tensor, data in request.inputs
        ]
        body: dict[str, Any] = {"inputs": inputs, "parameters": {**request.parameters, "binary_data_output": True}}
        if request.id:
            body["id"] = request.id
        if request.outputs is not None:
            body["outputs"] = [{"name": name} for name in request.outputs]
        text = json.dumps(body).encode()
        tensors_bytes = sum(len(data) for _, data in request.inputs)
        head = (
            f"POST {self._prefix}{model_path(request.model, request.version)}/infer HTTP/1.1\r\n{self._fixed}"
            f"content-type: application/octet-stream\r\ninference-header-content-length: {len(text)}\r\n"
            f"content-length: {len(text) + tensors_bytes}\r\n\r\n"
        ).encode()
        pieces = [head, text, *(data for _, data in request.inputs)]
        if len(head) + len(text) + tensors_bytes <= _JOINED_BYTES:
            return [b"".join(pieces)]
        return [head + text, *pieces[2:]]


def model_path(model: str, version: str) -> str:
    """The path of a model, or of one of its versions."""
    path = "/v2/models/" + urllib.parse.quote(model, safe="")
    return f"{path}/versions/{urllib.parse.quote(version, safe='')}" if version else path


class Reader:
    """Reads one answer: bytes go where ``buffer`` says, ``received`` is told how many, until ``complete``.

    The head is parsed out of a scratch buffer. As soon as the length of the body is known the rest of it is received where
    it stays, placed so that the first tensor is aligned: outputs are views of it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        #: Whether any byte has come.
        self.begun = False
        #: Whether the connection can be used again.
        self.reusable = False
        self.headers: dict[bytes, bytes] = {}
        self._parser = httptools.HttpResponseParser(self)
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._chunks: list[bytes] = []
        self._body: memoryview | None = None
        self._filled = 0
        self._interim = False

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of the head."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is over."""
        self.status = self._parser.get_status_code()
        self._interim = 100 <= self.status < 200
        if self._interim:
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._chunks.append(data)
        self._filled += len(data)

    def on_message_complete(self) -> None:
        """The answer is over."""
        if not self._interim:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    # What the connections call.

    def buffer(self) -> memoryview:
        """Where the next bytes belong."""
        if self._body is not None:
            return self._body[self._filled :]
        return memoryview(self._scratch)

    def received(self, count: int) -> None:
        """So many bytes were put there."""
        self.begun = True
        if self._body is not None:
            self._filled += count
            self.complete = self._filled == len(self._body)
            return
        try:
            self._parser.feed_data(memoryview(self._scratch)[:count])
        except httptools.HttpParserError as error:
            raise BadAnswer(f"the server's answer isn't HTTP: {error}") from error
        length = self.headers.get(b"content-length")
        if not self.complete and self.status and not self._interim and length and b"transfer-encoding" not in self.headers:
            self._receive_in_place(int(length))

    def ended(self) -> bool:
        """The connection was closed. Says whether the answer is complete: one without a length ends that way."""
        if not self.complete and self.status and self._body is None and b"content-length" not in self.headers:
            self.complete = b"chunked" not in self.headers.get(b"transfer-encoding", b"").lower()
        self.reusable = False
        return self.complete

    def _receive_in_place(self, length: int) -> None:
        # The parser is left behind with what it has seen: from here on only bytes of this body can come.
        self.reusable = self._parser.should_keep_alive()
        self._body = _aligned(length, self.headers)
        at = 0
        for chunk in self._chunks:
            self._body[at : at + len(chunk)] = chunk
            at += len(chunk)
        self._chunks.clear()

    def body(self) -> memoryview:
        """The whole body."""
        if self._body is not None:
            return self._body
        if len(self._chunks) == 1:
            # A copy of a few kilobytes at most, aligned, and the caller's to write to.
            body = _aligned(self._filled, self.headers)
            body[:] = self._chunks[0]
            return body
        return memoryview(bytearray().join(self._chunks))


def _aligned(length: int, headers: Mapping[bytes, bytes]) -> memoryview:
    """Memory for a body whose tensors, behind the JSON, begin at an address that suits every type."""
    start = -_json_length(headers, 0) % 16
    return np.empty(start + length, np.uint8).data[start:]


def _json_length(headers: Mapping[bytes, bytes], otherwise: int) -> int:
    try:
        return int(headers.get(b"inference-header-content-length", otherwise))
    except ValueError:
        return otherwise


def _parsed(body: memoryview) -> Any:
    try:
        return json.loads(bytes(body))
    except ValueError as error:
        raise BadAnswer(f"the server's answer isn't JSON: {bytes(body[:200])!r}") from error


def checked(answer: Reader) -> memoryview:
    """The body of a success; a refusal is raised."""
    body = answer.body()
    if answer.status == 200:
        return body
    raise refused(answer, body)


def refused(answer: Reader, body: memoryview) -> PunctualError:
    """The error of an answer that isn't a success."""
    said: Any = None
    try:
        said = json.loads(bytes(body)) if len(body) else None
    except ValueError:
        pass
    retry_after: float | None = None
    try:
        retry_after = float(answer.headers[b"retry-after"])
    except (KeyError, ValueError):
        pass
    if not isinstance(said, dict) or not isinstance(said.get("error"), str):
        text = bytes(body[:200]).decode(errors="replace").strip()
        message = f"the server answered {answer.status}" + (f": {text}" if text else "")
        return refusal(message, None, answer.status, retry_after=retry_after)
    return refusal(
        said["error"],
        said.get("reason"),
        answer.status,
        earliest_deadline_us=said.get("earliest_deadline_us"),
        retry_after=retry_after,
    )


def result(answer: Reader) -> Result:
    """The outputs of an answer."""
    body = checked(answer)
    json_length = _json_length(answer.headers, len(body))
    said = _parsed(body[:json_length])
    try:
        return _result(said, body, json_length)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadAnswer(f"the server's answer isn't what the protocol asks for: {error!r}") from error


def _result(said: Any, body: memoryview, at: int) -> Result:
    outputs: dict[str, Array] = {}
    for output in said["outputs"]:
        name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[name] = from_json(name, datatype, shape, output["data"])
        else:
            if at + size > len(body):
                raise BadAnswer(f'the server\'s answer ends inside output "{name}"')
            outputs[name] = from_wire(name, datatype, shape, body[at : at + size])
            at += size
    return Result(said["model_name"], said.get("model_version", ""), outputs, said.get("id", ""), said.get("parameters"))


def model_metadata(answer: Reader) -> ModelMetadata:
    """What a model takes and gives."""
    said = _parsed(checked(answer))

    def tensors(side: str) -> tuple[Tensor, ...]:
        return tuple(Tensor(it["name"], it["datatype"], tuple(it["shape"])) for it in said[side])

    try:
        return ModelMetadata(
            said["name"], tuple(said.get("versions", ())), said.get("platform", ""), tensors("inputs"), tensors("outputs")
        )
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"the server's metadata isn't what the protocol asks for: {error!r}") from error


def server_metadata(answer: Reader) -> ServerMetadata:
    """Who the server is."""
    said = _parsed(checked(answer))
    try:
        return ServerMetadata(said["name"], said["version"], tuple(said.get("extensions", ())))
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"the server's metadata isn't what the protocol asks for: {error!r}") from error


def models(answer: Reader) -> list[Model]:
    """The index of the repository."""
    said = _parsed(checked(answer))
    try:
        return [Model(it["name"], it.get("version", ""), it.get("state", ""), it.get("reason", "")) for it in said]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadAnswer(f"the server's index isn't what the protocol asks for: {error!r}") from error


def yes(answer: Reader) -> bool:
    """Whether a question about health was answered with yes: anything but a success is a no."""
    return answer.status == 200
