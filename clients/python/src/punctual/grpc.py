"""The protocol over gRPC, for threads and for asyncio. Needs the extra ``punctual[grpc]``.

The messages are described here by a table and made from it when this is imported: nothing is generated, so any version of
protobuf will do, and nothing is registered under names that another package (Triton's client, for one) may have taken.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Any, NoReturn

try:
    import grpc
    import grpc.aio
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as missing:
    raise ImportError("grpc:// addresses need two more packages: pip install 'punctual[grpc]'") from missing

from .errors import NoAnswer, NoConnection, PunctualError, refusal
from .messages import Model, ModelMetadata, Parameter, Request, Result, ServerMetadata, Tensor
from .tensors import from_wire
from .transport import Clock, Options

# Fields are numbered in their order. A `*` marks a repeated field, `<>` a map from names to parameters, `|` one of several.
_MESSAGES = {
    "Empty": "",
    "Live": "bool live",
    "Ready": "bool ready",
    "Named": "string name, string version",
    "Server": "string name, string version, string* extensions",
    "TensorMetadata": "string name, string datatype, int64* shape",
    "Metadata": "string name, string* versions, string platform, TensorMetadata* inputs, TensorMetadata* outputs",
    "InferParameter": "bool| bool_param, int64| int64_param, string| string_param, double| double_param, uint64| uint64_param",
    "TensorHead": "string name, string datatype, int64* shape, InferParameter<> parameters",
    "Wanted": "string name, InferParameter<> parameters",
    "InferRequest": "string model_name, string model_version, string id, InferParameter<> parameters, TensorHead* inputs, "
    "Wanted* outputs, bytes* raw_input_contents",
    "InferResponse": "string model_name, string model_version, string id, InferParameter<> parameters, TensorHead* outputs, "
    "bytes* raw_output_contents",
    "IndexRequest": "string repository_name, bool ready",
    "IndexEntry": "string name, string version, string state, string reason",
    "Index": "IndexEntry* models",
}


def _describe(message: Any, fields: str) -> None:
    field_type = descriptor_pb2.FieldDescriptorProto
    for number, text in enumerate(filter(None, fields.split(", ")), 1):
        kind, name = text.split(" ")
        field = message.field.add(name=name, number=number, label=field_type.LABEL_OPTIONAL)
        base = kind.rstrip("*<>|")
        if kind.endswith("|"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            field.oneof_index = 0
        elif kind != base:
            field.label = field_type.LABEL_REPEATED
        if kind.endswith("<>"):
            entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
            entry.options.map_entry = True
            _describe(entry, f"string key, {base} value")
            base = f"{message.name}.{entry.name}"
        if base in _MESSAGES or "." in base:
            field.type = field_type.TYPE_MESSAGE
            field.type_name = f".punctual_client.{base}"
        else:
            field.type = getattr(field_type, f"TYPE_{base.upper()}")


def _make() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="punctual_client.proto", package="punctual_client", syntax="proto3")
    for name, fields in _MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    described = pool.Add(file) or pool.FindFileByName(file.name)
    return {name: message_factory.GetMessageClass(described.message_types_by_name[name]) for name in _MESSAGES}


_CLASSES = _make()
_SERVICE = "/inference.GRPCInferenceService/"
#: The calls: what is sent and what comes back.
_CALLS = {
    "ServerLive": ("Empty", "Live"),
    "ServerReady": ("Empty", "Ready"),
    "ModelReady": ("Named", "Ready"),
    "ServerMetadata": ("Empty", "Server"),
    "ModelMetadata": ("Named", "Metadata"),
    "RepositoryIndex": ("IndexRequest", "Index"),
    "ModelInfer": ("InferRequest", "InferResponse"),
}
# The server has its own bound on requests (`--max-body`), and says so better.
_CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class _Shared:
    """What does not depend on who waits."""

    def __init__(self, options: Options) -> None:
        self._target = _target(options.url)
        self._tls = options.url.scheme == "grpcs"
        if options.ssl_context is not None:
            raise ValueError("gRPC has its own TLS: ssl_context is for https:// addresses")
        self._headers = tuple((name.lower(), value) for name, value in (options.headers or {}).items())

    def _channel(self, module: Any) -> Any:
        if self._tls:
            return module.secure_channel(self._target, grpc.ssl_channel_credentials(), _CHANNEL_OPTIONS)
        return module.insecure_channel(self._target, _CHANNEL_OPTIONS)

    def _methods(self, channel: Any) -> dict[str, Any]:
        return {
            name: channel.unary_unary(
                _SERVICE + name,
                request_serializer=_CLASSES[sent].SerializeToString,
                response_deserializer=_CLASSES[received].FromString,
            )
            for name, (sent, received) in _CALLS.items()
        }

    def _arguments(self, clock: Clock) -> dict[str, Any]:
        left = clock.left_s()
        return {"timeout": None if left is None else max(left, 0.001), "metadata": self._headers}

    def _raise(self, error: Any) -> NoReturn:
        raise _error(self._target, error) from error


def _target(url: urllib.parse.SplitResult) -> str:
    if not url.hostname:
        raise ValueError(f'"{url.geturl()}" names no host: it should look like grpc://localhost:8001')
    if url.path.strip("/"):
        raise ValueError(f'"{url.geturl()}" has a path, which gRPC has no use for')
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{url.port or (443 if url.scheme == 'grpcs' else 8001)}"


def _error(target: str, error: Any) -> PunctualError:
    """The error for a status. Those that the server never saw carry no reason."""
    # Pairs, whichever of gRPC's kinds of metadata it is.
    code, said = error.code(), {name: value for name, value in error.trailing_metadata() or ()}
    reason, status = said.get("punctual-reason"), str(code.name)
    if reason is None and code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoAnswer(f"{target} said nothing in time", status=status)
    if reason is None and code == grpc.StatusCode.UNAVAILABLE:
        return NoConnection(f"{target} can't be reached: {error.details()}", status=status)
    earliest = said.get("punctual-earliest-deadline-us")
    return refusal(
        error.details() or status, reason, status, earliest_deadline_us=None if earliest is None else float(earliest)
    )


_PARAMETER_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def _set_parameter(target: Any, name: str, value: Parameter) -> None:
    field = _PARAMETER_FIELDS.get(type(value))
    if field is None:
        raise TypeError(f'the parameter "{name}" is a {type(value).__name__}: bool, int, float and str are there')
    setattr(target[name], field, value)


def _infer_request(request: Request, clock: Clock) -> Any:
    timeout_us = clock.deadline_us()
    if timeout_us is not None:
        request.parameters["timeout"] = timeout_us
    message = _CLASSES["InferRequest"](model_name=request.model, model_version=request.version, id=request.id)
    for name, value in request.parameters.items():
        _set_parameter(message.parameters, name, value)
    for tensor, data in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(data))
    for name in request.outputs or ():
        message.outputs.add(name=name)
    return message


def _result(answer: Any) -> Result:
    outputs = {
        head.name: from_wire(head.name, head.datatype, tuple(head.shape), memoryview(data))
        for head, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    parameters = {name: getattr(value, value.WhichOneof("choice")) for name, value in answer.parameters.items()}
    return Result(answer.model_name, answer.model_version, outputs, answer.id, parameters)


def _metadata(answer: Any) -> ModelMetadata:
    def tensors(side: Any) -> tuple[Tensor, ...]:
        return tuple(Tensor(it.name, it.datatype, tuple(it.shape)) for it in side)

    return ModelMetadata(
        answer.name, tuple(answer.versions), answer.platform, tensors(answer.inputs), tensors(answer.outputs)
    )


def _models(answer: Any) -> list[Model]:
    return [Model(it.name, it.version, it.state, it.reason) for it in answer.models]


def _named(model: str, version: str) -> Any:
    return _CLASSES["Named"](name=model, version=version)


class GrpcTransport(_Shared):
    """gRPC for threads. One connection carries all calls."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._open = self._channel(grpc)
        self._calls = self._methods(self._open)

    def live(self, clock: Clock) -> bool:
        """Whether the process is up."""
        return bool(self._call("ServerLive", clock).live)

    def ready(self, clock: Clock) -> bool:
        """Whether it takes requests."""
        return bool(self._call("ServerReady", clock).ready)

    def model_ready(self, model: str, version: str, clock: Clock) -> bool:
        """Whether a model can be asked."""
        return bool(self._call("ModelReady", clock, _named(model, version)).ready)

    def server_metadata(self, clock: Clock) -> ServerMetadata:
        """Who the server is."""
        answer = self._call("ServerMetadata", clock)
        return ServerMetadata(answer.name, answer.version, tuple(answer.extensions))

    def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata:
        """What a model takes and gives."""
        return _metadata(self._call("ModelMetadata", clock, _named(model, version)))

    def models(self, clock: Clock) -> list[Model]:
        """What is in the repository."""
        return _models(self._call("RepositoryIndex", clock))

    def infer(self, request: Request, clock: Clock) -> Result:
        """Computes."""
        return _result(self._call("ModelInfer", clock, _infer_request(request, clock)))

    def close(self) -> None:
        """Closes the connection."""
        self._open.close()

    def _call(self, name: str, clock: Clock, message: Any = None) -> Any:
        try:
            return self._calls[name](_CLASSES[_CALLS[name][0]]() if message is None else message, **self._arguments(clock))
        except grpc.RpcError as error:
            self._raise(error)
        except ValueError as error:
            raise NoConnection(f"the client was closed: {error}") from error


class AsyncGrpcTransport(_Shared):
    """gRPC for asyncio. One connection carries all calls."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: Any = None
        self._calls: dict[str, Any] = {}
        self._closed = False

    async def live(self, clock: Clock) -> bool:
        """Whether the process is up."""
        return bool((await self._call("ServerLive", clock)).live)

    async def ready(self, clock: Clock) -> bool:
        """Whether it takes requests."""
        return bool((await self._call("ServerReady", clock)).ready)

    async def model_ready(self, model: str, version: str, clock: Clock) -> bool:
        """Whether a model can be asked."""
        return bool((await self._call("ModelReady", clock, _named(model, version))).ready)

    async def server_metadata(self, clock: Clock) -> ServerMetadata:
        """Who the server is."""
        answer = await self._call("ServerMetadata", clock)
        return ServerMetadata(answer.name, answer.version, tuple(answer.extensions))

    async def model_metadata(self, model: str, version: str, clock: Clock) -> ModelMetadata:
        """What a model takes and gives."""
        return _metadata(await self._call("ModelMetadata", clock, _named(model, version)))

    async def models(self, clock: Clock) -> list[Model]:
        """What is in the repository."""
        return _models(await self._call("RepositoryIndex", clock))

    async def infer(self, request: Request, clock: Clock) -> Result:
        """Computes."""
        return _result(await self._call("ModelInfer", clock, _infer_request(request, clock)))

    async def close(self) -> None:
        """Closes the connection."""
        self._closed = True
        if self._open is not None and self._loop is asyncio.get_running_loop():
            await self._open.close()

    async def _call(self, name: str, clock: Clock, message: Any = None) -> Any:
        if self._closed:
            raise NoConnection("the client was closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # A channel belongs to the event loop that it was made in.
            self._loop, self._open = loop, self._channel(grpc.aio)
            self._calls = self._methods(self._open)
        try:
            return await self._calls[name](_CLASSES[_CALLS[name][0]]() if message is None else message, **self._arguments(clock))
        except grpc.RpcError as error:
            self._raise(error)
