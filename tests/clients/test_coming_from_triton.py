"""The page "Coming from Triton" leaves nothing out, and what it says is there is there."""

import json
import re
import urllib.request

import grpc
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from conftest import ROOT

PAGE = (ROOT / "docs" / "coming-from-triton.md").read_text()
CALLS = [method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]


def section(title):
    """The text below a heading, up to the next of its kind."""
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", PAGE, re.M | re.S).group(1)


def rows(text):
    """The rows of the tables in a text, without their heads."""
    lines = re.findall(r"^\| ?(.*?) ?\|$", text, re.M)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if not line.startswith("--")]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_field_of_a_configuration_is_named():
    named = {name for row in rows(section("config.pbtxt")) for name in names(row[0])}
    fields = {field.name for field in model_config_pb2.ModelConfig.DESCRIPTOR.fields}
    for message in ["ModelInput", "ModelOutput", "ModelDynamicBatching"]:
        fields |= {field.name for field in getattr(model_config_pb2, message).DESCRIPTOR.fields}
    assert fields - named == set()


def test_every_call_is_named():
    assert [call for call in CALLS if f"`{call}`" not in section("Calls and extensions")] == []


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_the_page_has_is_answered(server, call):
    """An empty request may well be refused, but not as something that isn't there."""
    (told,) = [row[-1] for row in rows(section("Calls and extensions")) if call in names(row[0])]
    method = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[call]
    request = getattr(service_pb2, method.input_type.name)()
    with grpc.insecure_channel(server.grpc) as channel:
        ask = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)
        try:
            list(ask(iter([request]))) if method.client_streaming else ask(request)
            return
        except grpc.RpcError as error:
            reason = dict(error.trailing_metadata()).get("punctual-reason")
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                return
    # What is known but turned off says so; anything else isn't there at all.
    assert ("refused" if reason == "unsupported" else "not there") in told, f"the page says of {call}: {told}"


def test_extensions_that_the_page_has_are_listed_by_the_server(server):
    told = {name: row[-1] for row in rows(section("Calls and extensions")) if len(row) == 2 for name in names(row[0])}
    always = {name for name, words in told.items() if re.match("there(,|$)", words)}
    listed = set(json.load(urllib.request.urlopen(f"http://{server.http}/v2", timeout=10))["extensions"])
    assert always and always - listed == set() and listed - set(told) == set()


@pytest.mark.parametrize("path", re.findall(r"`(?:GET )?(/[^`]+)`", PAGE.split("Beside them:")[1].split("| extension")[0]))
def test_what_is_there_beside_them_is(server, path):
    assert urllib.request.urlopen(f"http://{server.http}{path}", timeout=10).status == 200


def test_metrics_that_are_the_same_are_served(server):
    text = urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=10).read().decode()
    served = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    same = [name for row in rows(section("Metrics")) if row[1].startswith("the same") for name in names(row[0])]
    assert len(same) > 10 and set(same) - served == set()


def test_settings_that_are_named_exist():
    """What the right side of the table promises is in the reference, which is written from the code."""
    reference = (ROOT / "docs" / "configuration.md").read_text()
    named = {name.split()[0] for row in rows(section("The command line")) for name in names(row[1]) if name.startswith("--")}
    assert named and {name for name in named if f"`{name} " not in reference} == set()


def test_limits_on_requests_and_shared_memory_are_named():
    named = {name for row in rows(section("The command line")) for name in names(row[0])}
    assert {"--http-max-input-size", "--allow-client-shm"} <= named
    assert any("gRPC messages" in row[0] and "--max-body" in row[1] for row in rows(section("The command line")))
