"""What is asked and what is answered, whichever way it travels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import BadInput
from .tensors import Array, Buffer, to_wire

#: A parameter of a request.
Parameter = bool | int | float | str
#: The inputs of a request: one array, arrays by name, or a list of them in the model's order.
Inputs = Any | Mapping[str, Any] | Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output of a model. A dimension of -1 may have any size; the first is the batch where the model has one."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """What a model takes and gives."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def input(self, name: str) -> Tensor:
        """The input of that name."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        raise BadInput(f'the model "{self.name}" has no input "{name}": it takes {self._names()}')

    def named(self, inputs: Inputs) -> Mapping[str, Any]:
        """The inputs by name."""
        if isinstance(inputs, Mapping):
            return inputs
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(self.inputs):
            how = "the array alone" if len(self.inputs) == 1 else "a list of so many, or a dict by name"
            count = f"{len(values)} were given" if len(values) != 1 else "one was given"
            raise BadInput(f'the model "{self.name}" takes {self._names()}, but {count}: give {how}')
        return {tensor.name: value for tensor, value in zip(self.inputs, values, strict=True)}

    def _names(self) -> str:
        return ", ".join(f'"{tensor.name}" ({tensor.datatype})' for tensor in self.inputs) or "nothing"


@dataclasses.dataclass(frozen=True)
class ServerMetadata:
    """Who the server is and what it can do beyond the protocol's core."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model in the server's repository."""

    name: str
    version: str = ""
    #: ``READY``, ``LOADING``, ``UNLOADING`` or ``UNAVAILABLE``; empty where nothing is known.
    state: str = ""
    #: Why it is in that state, where there is something to say.
    reason: str = ""


@dataclasses.dataclass
class Request:
    """A request whose inputs are ready to be sent."""

    model: str
    version: str
    inputs: list[tuple[Tensor, Buffer]]
    outputs: Sequence[str] | None
    parameters: dict[str, Parameter]
    id: str

    @classmethod
    def build(
        cls,
        metadata: ModelMetadata,
        version: str,
        inputs: Inputs,
        outputs: Sequence[str] | None,
        parameters: Mapping[str, Parameter] | None,
        priority: int | None,
        request_id: str,
    ) -> Request:
        """Turns arrays into what the model takes."""
        ready = []
        for name, value in metadata.named(inputs).items():
            datatype = metadata.input(name).datatype
            shape, data = to_wire(name, value, datatype)
            ready.append((Tensor(name, datatype, shape), data))
        if isinstance(outputs, str):
            outputs = [outputs]
        values = dict(parameters or {})
        if priority is not None:
            values["priority"] = priority
        return cls(metadata.name, version, ready, outputs, values, request_id)


class Result(Mapping[str, Array]):
    """The outputs of a model, as arrays by name: ``result["scores"]``, ``result.outputs``; ``result.array`` if there is one."""

    __slots__ = ("id", "model", "outputs", "parameters", "version")

    def __init__(
        self,
        model: str,
        version: str,
        outputs: dict[str, Array],
        id: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        #: The arrays by name, in the order of the answer.
        self.outputs = outputs
        #: Who answered.
        self.model = model
        #: Which version of it answered.
        self.version = version
        #: The id of the request, if it had one.
        self.id = id
        #: What else the server said.
        self.parameters: Mapping[str, Any] = parameters or {}

    @property
    def array(self) -> Array:
        """The only output. A model with several has no such thing: ask by name."""
        if len(self.outputs) != 1:
            names = ", ".join(f'"{name}"' for name in self.outputs) or "none"
            raise ValueError(f'the model "{self.model}" has {len(self.outputs)} outputs ({names}): ask for one by name')
        return next(iter(self.outputs.values()))

    def text(self, name: str | None = None) -> Array:
        """An output of strings (the only one, or the one of that name) as an array of str instead of bytes."""
        array = self.array if name is None else self.outputs[name]
        if array.dtype != object:
            raise ValueError(f"the output is an array of {array.dtype}, not of strings")
        decoded = np.empty(array.size, object)
        decoded[:] = [element.decode() for element in array.reshape(-1)]
        return decoded.reshape(array.shape)

    def __getitem__(self, name: str) -> Array:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self.outputs.items())
        return f"Result({self.model} {self.version}: {outputs})"
