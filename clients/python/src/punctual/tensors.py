"""Arrays as the protocol's tensors, and back, without a copy where none is needed."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadAnswer, BadInput

Array = npt.NDArray[Any]
#: What can be sent as bytes without being copied.
Buffer = bytes | bytearray | memoryview

#: The protocol's types that numpy has; all little-endian on the wire.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?",
        "UINT8": "u1",
        "UINT16": "<u2",
        "UINT32": "<u4",
        "UINT64": "<u8",
        "INT8": "i1",
        "INT16": "<i2",
        "INT32": "<i4",
        "INT64": "<i8",
        "FP16": "<f2",
        "FP32": "<f4",
        "FP64": "<f8",
    }.items()
}
_LENGTH = struct.Struct("<I")


def to_wire(name: str, value: Any, datatype: str) -> tuple[tuple[int, ...], Buffer]:
    """The shape and the bytes of an input. ``datatype`` is what the model takes; the value is converted where that is safe."""
    if datatype == "BYTES":
        return _strings_to_wire(name, value)
    if datatype == "BF16":
        return _bfloat16_to_wire(name, value)
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise BadInput(f'input "{name}" takes {datatype}, which this client doesn\'t know: a newer one may')
    array = _converted(name, _asarray(name, value), dtype, datatype)
    return array.shape, _bytes(array)


def from_wire(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """An output as an array: a view of ``data`` where possible, BF16 as float32, BYTES as objects of type bytes."""
    if datatype == "BYTES":
        return _strings_from_wire(name, shape, data)
    dtype = np.dtype("<u2") if datatype == "BF16" else DTYPES.get(datatype)
    if dtype is None:
        raise BadAnswer(f'output "{name}" is {datatype}, which this client doesn\'t know: a newer one may')
    try:
        array: Array = np.frombuffer(data, dtype).reshape(shape)
    except ValueError as error:
        raise BadAnswer(f'output "{name}" has {len(data)} bytes, which isn\'t {list(shape)} of {datatype}') from error
    if datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if not array.flags.aligned or not array.flags.writeable or sys.byteorder == "big":
        return array.astype(dtype.newbyteorder("="))
    return array


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """An output that came as JSON, which happens where the server has no binary form for it."""
    if datatype == "BYTES":
        array = np.empty(len(data), object)
        array[:] = [text.encode() for text in data]
    else:
        array = np.asarray(data, DTYPES.get(datatype))
    return array.reshape(shape)


def _asarray(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadInput(f'input "{name}" isn\'t an array: {error}') from error
    if array.dtype.kind not in "biufV" and array.size:
        raise BadInput(f'input "{name}" is an array of {array.dtype}, which isn\'t numbers: convert it first')
    return array


def _bytes(array: Array) -> Buffer:
    """The content as it lies in memory; copied only where it doesn't lie in one piece."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _converted(name: str, array: Array, dtype: np.dtype[Any], datatype: str) -> Array:
    """The array with another type, if that keeps the kind of number and every value fits."""
    if array.dtype == dtype:
        return array
    if array.size == 0:
        return array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind") and not (array.dtype.kind in "iu" and dtype.kind in "iu"):
        raise BadInput(f'input "{name}" is an array of {array.dtype}, but the model takes {datatype}: convert it first')
    if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype, "safe"):
        bounds = np.iinfo(dtype)
        smallest, largest = int(array.min()), int(array.max())
        if smallest < bounds.min or largest > bounds.max:
            outside = smallest if smallest < bounds.min else largest
            raise BadInput(f'input "{name}" has the value {outside}, which {datatype} can\'t hold')
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError as error:
        raise BadInput(f'input "{name}" has a value that is too large for {datatype}') from error


def _bfloat16_to_wire(name: str, value: Any) -> tuple[tuple[int, ...], Buffer]:
    """Rounds to the nearest, ties to even, as hardware does. Arrays of the package ml_dtypes are sent as they are."""
    array = _asarray(name, value)
    if array.dtype.name == "bfloat16":
        return array.shape, _bytes(array.view(np.uint16))
    # Through float32: rounding twice may differ from rounding a float64 once, in the last bit.
    bits = _converted(name, array, np.dtype("<f4"), "BF16").reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding up the bits of not-a-number could make them infinity or zero.
    not_a_number = (bits & 0x7FFFFFFF) > 0x7F800000
    return array.shape, _bytes(np.where(not_a_number, (bits >> 16) | 0x40, rounded).astype("<u2"))


def _strings_to_wire(name: str, value: Any) -> tuple[tuple[int, ...], Buffer]:
    """Each element with its length in front; texts as UTF-8."""
    # As objects: numpy's own strings lose zeros at their ends.
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    if array.dtype.kind not in "OSUT" and array.size:
        raise BadInput(f'input "{name}" is an array of {array.dtype}, but the model takes strings (BYTES)')
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes):
            kind = type(element).__name__
            raise BadInput(f'input "{name}" has an element of type {kind}, but the model takes str or bytes (BYTES)')
        parts += [_LENGTH.pack(len(element)), element]
    return array.shape, b"".join(parts)


def _strings_from_wire(name: str, shape: tuple[int, ...], data: memoryview) -> Array:
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise BadAnswer(f'output "{name}" ends inside the length of element {len(elements)}')
        end = at + 4 + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise BadAnswer(f'output "{name}" ends inside element {len(elements)}')
        elements.append(bytes(data[at + 4 : end]))
        at = end
    array = np.empty(len(elements), object)
    array[:] = elements
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise BadAnswer(f'output "{name}" has {len(elements)} elements, which isn\'t {list(shape)}') from error
