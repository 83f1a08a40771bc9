"""Health as Kubernetes and gRPC's own tools ask for it, and reflection."""

import http.client
import pathlib
import signal

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import conftest

SERVICE = "inference.GRPCInferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def status(address, path, method="GET"):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/v2/health/live", "/v2/health/ready"])
def test_probes(server, path):
    assert status(server.http, path) == 200
    assert status(server.http, path, "HEAD") == 200
    assert status(server.http, path, "POST") == 405


@pytest.mark.parametrize("service", ["", SERVICE])
def test_grpc_health(server, service):
    with grpc.insecure_channel(server.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request).status == SERVING
        watch = health.Watch(request)
        assert next(watch).status == SERVING
        watch.cancel()


def test_grpc_health_of_an_unknown_service(server):
    with grpc.insecure_channel(server.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="nobody")
        with pytest.raises(grpc.RpcError) as refused:
            health.Check(request)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(request)
        assert next(watch).status == UNKNOWN
        watch.cancel()


def test_a_watcher_is_told_that_the_server_goes_down_and_does_not_hold_it_up(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mlp").symlink_to(pathlib.Path(conftest.ROOT, ".cache", "test-models", "mlp"))
    server = conftest.start(tmp_path / "models")
    try:
        with grpc.insecure_channel(server.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == SERVING
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == NOT_SERVING
            with pytest.raises(StopIteration):
                next(watch)
        assert server.process.wait(timeout=20) == 0, "the grace for requests in flight is 30 s"
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_services(server, version):
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        (answer,) = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name for service in answer.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health", f"grpc.reflection.{version}.ServerReflection"} <= names


def test_a_client_that_only_knows_reflection_can_call(server):
    with grpc.insecure_channel(server.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        service = DescriptorPool(database).FindServiceByName(SERVICE)
        assert len(service.methods) >= 20
        method = service.FindMethodByName("ModelReady")
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_unary(
            f"/{SERVICE}/ModelReady", request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        assert call(request(name="mlp")).ready
        assert not call(request(name="nothing")).ready
