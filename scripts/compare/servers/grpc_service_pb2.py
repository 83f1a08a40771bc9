"""The protocol's messages under the name by which they are pickled between Ray's processes."""

from tritonclient.grpc.service_pb2 import *  # noqa: F403
