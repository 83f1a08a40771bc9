"""Client of Punctual, the model server that answers on time.

>>> import numpy, punctual
>>> client = punctual.Client("http://localhost:8000")
>>> client.infer("mlp", numpy.zeros((1, 10)), deadline_ms=50).array  # doctest: +SKIP
array([[...]], dtype=float32)

What can't be answered in time is an exception, at once, that says when it could have been:

>>> try:  # doctest: +SKIP
...     client.infer("mlp", numpy.zeros((1, 10)), deadline_ms=0.1)
... except punctual.DeadlineUnreachable as refused:
...     print(refused.reason, refused.earliest_deadline_ms)
deadline_unreachable 1.3
"""

from .aclient import AsyncClient
from .client import Client
from .errors import (
    AlreadyExists,
    BadAnswer,
    BadInput,
    BodyTooLarge,
    BrokenOff,
    ClientLimit,
    DeadlineError,
    DeadlineMissed,
    DeadlineUnreachable,
    ExecutionFailed,
    Forbidden,
    LoadFailed,
    MethodNotAllowed,
    ModelBroken,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    NoAnswer,
    NoConnection,
    NoDevice,
    NotFound,
    NotLive,
    NotReady,
    Overloaded,
    PunctualError,
    QueueFull,
    RegionNotFound,
    ShuttingDown,
    TooManyConnections,
    Unauthenticated,
    Unavailable,
    Unsupported,
    UnsupportedEncoding,
)
from .messages import Model, ModelMetadata, Result, ServerMetadata, Tensor
from .retry import Retry

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "BadAnswer",
    "BadInput",
    "BodyTooLarge",
    "BrokenOff",
    "Client",
    "ClientLimit",
    "DeadlineError",
    "DeadlineMissed",
    "DeadlineUnreachable",
    "ExecutionFailed",
    "Forbidden",
    "LoadFailed",
    "MethodNotAllowed",
    "Model",
    "ModelBroken",
    "ModelLoading",
    "ModelMetadata",
    "ModelNotFound",
    "ModelUnavailable",
    "NoAnswer",
    "NoConnection",
    "NoDevice",
    "NotFound",
    "NotLive",
    "NotReady",
    "Overloaded",
    "PunctualError",
    "QueueFull",
    "RegionNotFound",
    "Result",
    "Retry",
    "ServerMetadata",
    "ShuttingDown",
    "Tensor",
    "TooManyConnections",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "UnsupportedEncoding",
]
