"""The Python package: its wheel is built, installed into a folder of its own, and used against the real server."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import pickle
import re
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile

import numpy as np
import pytest
import trustme

import conftest
from cases import check, find, read
from conftest import ROOT
from test_outputs import CASES, load

SOURCE = ROOT / "clients" / "python"


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel, and the folder that it is installed in."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(SOURCE))
    (built,) = folder.glob("*.whl")
    pip("install", "--no-deps", "--target", str(folder / "site"), str(built))
    return built, folder / "site"


@pytest.fixture(scope="session")
def punctual(wheel):
    sys.path.insert(0, str(wheel[1]))
    import punctual

    assert punctual.__file__.startswith(str(wheel[1]))
    return punctual


@pytest.fixture(params=["http", "grpc"])
def url(server, request):
    return f"{request.param}://{getattr(server, request.param)}"


@pytest.fixture
def client(punctual, url):
    with punctual.Client(url) as client:
        yield client


EMULATED = """
platform: "emulated"
max_batch_size: 1
parameters {{ key: "emulated_latency" value {{ string_value: "alpha_ms=0,beta_ms={beta},load_ms=1" }} }}
"""


@pytest.fixture
def emulated(tmp_path):
    """Starts a server with an emulated device, whose models take as long as they are told."""
    started = []

    def start(*options, **models):
        for name, beta in models.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "config.pbtxt").write_text(EMULATED.format(beta=beta))
        started.append(conftest.start(tmp_path, "--devices", "emulated:1", *options))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


STARTED = 'punctual_queue_seconds_count{model="%s",version="1"}'
ROW = np.full((1, 10), 0.5, np.float32)


# What is in the wheel.


def test_the_wheel_has_what_it_needs_and_the_version_of_the_server(wheel, punctual):
    with zipfile.ZipFile(wheel[0]) as content:
        names = content.namelist()
        (licence,) = [name for name in names if name.endswith("licenses/LICENSE")]
        assert content.read(licence) == (ROOT / "LICENSE").read_bytes()
        (metadata,) = [name for name in names if name.endswith("METADATA")]
        about = content.read(metadata).decode()
    assert "punctual/py.typed" in names
    assert re.search(r"^Requires-Dist: numpy", about, re.M) and re.search(r"^Requires-Dist: httptools", about, re.M)
    served = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    assert punctual.__version__ == served and f"Version: {served}\n" in about


def test_the_source_archive_stands_for_itself(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=SOURCE, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        files = {member.name.split("/", 1)[1]: member for member in content.getmembers()}
    # A link to the repository's own licence would lead nowhere from there.
    assert all(member.isfile() for member in files.values())
    assert {"LICENSE", "README.md", "pyproject.toml", "src/punctual/py.typed"} <= set(files)


def test_types_are_complete_and_visible_to_users(wheel, tmp_path):
    def mypy(*arguments, **environment):
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".cache" / "mypy"), *arguments]
        done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, env=os.environ | environment)
        return done.returncode, done.stdout + done.stderr

    assert mypy("-p", "punctual")[0] == 0, mypy("-p", "punctual")[1]
    user = tmp_path / "user.py"
    user.write_text("import punctual\nreveal_type(punctual.Client().infer)\nx: int = punctual.Client().live()\npunctual.Client().infer(7, None)\n")
    # Without the settings of the sources, only what was installed counts.
    code, said = mypy("--config-file", os.devnull, str(user), MYPYPATH=str(wheel[1]))
    assert code == 1 and "-> punctual.messages.Result" in said, said
    assert 'Argument 1 to "infer" of "Client" has incompatible type "int"; expected "str"' in said, said


# Good input.


@pytest.mark.parametrize("name", CASES)
def test_every_model(client, server, name):
    case = load(name, server)
    result = client.infer(case.model, {name: array for name, (_, array) in case.inputs.items()})
    check(case, result.get)
    assert result.model == case.model and result.version == "1" and len(result) == len(case.outputs)
    assert all(array.flags.writeable and array.flags.aligned for array in result.values())


def test_inputs_alone_by_name_and_in_order(client):
    names = [tensor.name for tensor in client.metadata("add").inputs]
    shape = client.metadata("add").inputs[0].shape
    x = np.arange(abs(np.prod(shape)), dtype=np.float32).reshape([abs(size) for size in shape])
    y = np.ones_like(x)
    for inputs in [[x, y], (x, y), dict(zip(names, [x, y])), [x.tolist(), y.tolist()]]:
        result = client.infer("add", inputs)
        np.testing.assert_array_equal(result["sum"], x + y)
        np.testing.assert_array_equal(result["difference"], x - y)
    with pytest.raises(ValueError, match='has 2 outputs \\("sum", "difference"\\): ask for one by name'):
        _ = result.array
    np.testing.assert_array_equal(client.infer("add", inputs, outputs=["difference"]).array, x - y)
    result = client.infer("mlp", ROW)
    assert result.array is result["output"] and list(result) == ["output"] and result.outputs == dict(result)


def test_types_are_converted_where_nothing_is_lost(client, punctual):
    for given in [np.arange(5)[None], np.arange(5, dtype=np.uint8)[None], np.arange(5, dtype=">i4")[None], [list(range(5))] * 1]:
        if isinstance(given, list):
            given = {"input": given}
        result = client.infer("identity_int32", given)
        assert result.array.dtype == np.int32 and result.array.tolist() == [[0, 1, 2, 3, 4]]
    halves = np.linspace(0, 1, 10)[None, ::2]
    np.testing.assert_array_equal(client.infer("identity_fp32", halves).array, halves.astype(np.float32))
    for model, given, said in [
        ("identity_int32", np.array([[2**31, 0, 0, 0, 0]]), 'input "input" has the value 2147483648, which INT32 can\'t hold'),
        ("identity_uint8", np.array([[-1, 0, 0, 0, 0]]), 'has the value -1, which UINT8'),
        ("identity_int32", np.zeros((1, 5)), "an array of float64, but the model takes INT32"),
        ("identity_fp16", np.full((1, 5), 1e6), "too large for FP16"),
        ("identity_fp32", np.array([["a"] * 5]), "isn't numbers"),
        ("identity_bytes", np.zeros((1, 5)), "but the model takes strings"),
        ("identity_bytes", {"input": [[1, 2]]}, "has an element of type int"),
    ]:
        with pytest.raises(punctual.BadInput, match=re.escape(said)):
            client.infer(model, given)


def test_strings_are_bytes_or_texts(client):
    texts = [["plain", "grüß", "", "a\0"]]
    result = client.infer("identity_bytes", {"input": texts})
    assert result.array.tolist() == [[text.encode() for text in texts[0]]] and result.text().tolist() == texts
    assert client.infer("identity_bytes", np.array([["plain", "grüß"]])).text().tolist() == [["plain", "grüß"]]
    assert client.infer("identity_bytes", np.array([[b"a", b"bc"]])).array.tolist() == [[b"a", b"bc"]]


def test_bfloat16_goes_in_and_out_as_floats(client):
    import ml_dtypes

    values = np.array([1.0, -2.5, 1.00390625, 1.01171875, 3.4e38, np.inf, -np.inf, np.nan, 1e-40, 0.1], np.float32)
    for start in range(0, 10, 5):
        row = values[None, start : start + 5]
        expected = row.astype(ml_dtypes.bfloat16).astype(np.float32)
        for given in [row, row.astype(np.float64), row.astype(ml_dtypes.bfloat16)]:
            with np.errstate(all="ignore"):
                got = client.infer("identity_bf16", given).array
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, expected)


def test_arrays_that_are_large_or_do_not_lie_in_one_piece(client):
    image = np.random.default_rng(1).random((96, 96, 3, 1), np.float32)
    turned = image.transpose(3, 2, 0, 1)
    expected = client.infer("rapidocr-det", np.ascontiguousarray(turned)).array
    np.testing.assert_array_equal(client.infer("rapidocr-det", turned).array, expected)


def test_questions_beside_infer(client, punctual):
    assert client.live() and client.ready() and client.ready("mlp") and client.ready("mlp", "1")
    assert not client.ready("mlp", "2") and not client.ready("nothing")
    assert client.server_metadata().name == "punctual" and "binary_tensor_data" in client.server_metadata().extensions
    metadata = client.metadata("magika")
    assert metadata.inputs == (punctual.Tensor("bytes", "INT32", (-1, 2048)),) and metadata.versions == ("1",)
    assert punctual.Model("mlp", "1", "READY", "") in client.models()
    (broken,) = [model for model in client.models() if model.name == "missing_operator"]
    assert broken.state == "UNAVAILABLE" and "it needs the operator" in broken.reason
    result = client.infer("mlp", ROW, version="1", outputs="output", request_id="question 7", priority=1, parameters={"x": "y"})
    assert result.id == "question 7"


# Many at once.


def test_threads_share_a_client(client, server):
    def ask(number):
        row = np.full((1, 5), number, np.int64)
        for _ in range(20):
            assert client.infer("identity_int64", row, deadline_ms=30_000).array.tolist() == row.tolist()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def test_connections_are_kept(punctual, server):
    open_now = 'punctual_io_connections{protocol="http"}'
    with punctual.Client(server.http) as client:
        client.infer("mlp", ROW)
        before = server.metric(open_now)
        for _ in range(50):
            client.infer("mlp", ROW)
        assert server.metric(open_now) <= before
        client.close()
        with pytest.raises(punctual.NoConnection, match="was closed"):
            client.infer("mlp", ROW)


def test_asyncio(punctual, url):
    cases = [read(path) for name, path in find().items() if name.rsplit("-", 1)[0] in ("mlp", "magika", "identity_bytes")]

    async def ask():
        async with punctual.AsyncClient(url, connections=8) as client:
            assert await client.live() and await client.ready() and await client.ready("mlp")
            assert "mlp" in [model.name for model in await client.models()]
            assert (await client.metadata("mlp")).name == "mlp" and (await client.server_metadata()).name == "punctual"
            questions = [client.infer(case.model, [array for _, array in case.inputs.values()]) for case in cases * 4]
            for case, result in zip(cases * 4, await asyncio.gather(*questions), strict=True):
                check(case, result.get)
            with pytest.raises(punctual.ModelNotFound):
                await client.infer("nothing", ROW)
            with pytest.raises(punctual.BadInput):
                await client.infer("mlp", np.zeros((1, 9)))
            large = np.zeros((1, 3, 160, 160), np.float32)
            assert (await client.infer("rapidocr-det", large)).array.size
        return client

    closed = asyncio.run(ask())
    with pytest.raises(punctual.NoConnection, match="was closed"):
        asyncio.run(closed.infer("mlp", ROW))


def test_one_asynchronous_client_in_two_event_loops(punctual, url):
    client = punctual.AsyncClient(url)
    for _ in range(2):
        assert asyncio.run(client.infer("mlp", ROW)).array.shape == (1, 10)


def test_a_cancelled_call_leaves_the_plan(punctual, emulated):
    server = emulated(blocker=100_000, net=1)
    cancelled = 'punctual_requests_total{model="net",outcome="cancelled",reason="cancelled",version="1"}'

    async def ask(url, number):
        # Without a limit: over gRPC it would be a deadline, and the device is busy for longer.
        async with punctual.AsyncClient(url, timeout_s=None) as client:
            waiting = asyncio.create_task(client.infer("net", ROW))
            metric = lambda name: asyncio.to_thread(server.metric, name)  # noqa: E731
            while await metric("punctual_requests_in_flight") != 2:
                assert not waiting.done(), waiting.exception()
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while await metric(cancelled) != number:
                await asyncio.sleep(0.01)

    blocked = punctual.Client(server.http, timeout_s=None)
    threading.Thread(target=lambda: conftest.ignoring_the_end(blocked.infer, "blocker", ROW), daemon=True).start()
    server.until("the device is busy", lambda: server.metric(STARTED % "blocker") == 1)
    asyncio.run(asyncio.wait_for(ask(f"http://{server.http}", 1), 60))
    asyncio.run(asyncio.wait_for(ask(f"grpc://{server.grpc}", 2), 60))
    assert server.metric('punctual_execution_seconds_count{model="net",version="1"}') == 0


# Refusals.


def test_bad_input_is_the_servers_sentence(client, punctual):
    for model, inputs, kind, said in [
        ("nothing", ROW, punctual.ModelNotFound, 'there is no model "nothing": this server has '),
        ("mlp", np.zeros((1, 9)), punctual.BadInput, 'input "input" has the shape [1, 9], but the model takes [1 to '),
        ("mlp", {"x": ROW}, punctual.BadInput, 'the model "mlp" has no input "x": it takes "input" (FP32)'),
        ("mlp", {}, punctual.BadInput, 'input "input" is missing'),
        ("add", ROW, punctual.BadInput, "but one was given"),
        ("mlp", [ROW, ROW], punctual.BadInput, "but 2 were given"),
        ("mlp", np.zeros((3_000_000, 10), np.float32), punctual.BodyTooLarge, "send less in one request"),
        ("missing_operator", np.zeros((1, 3)), punctual.ModelBroken, "it needs the operator no.such.domain:NoSuchOperator"),
    ]:
        with pytest.raises(kind, match=re.escape(said)) as raised:
            client.infer(model, inputs)
        assert raised.value.reason == kind.reason and isinstance(raised.value, punctual.PunctualError)
    with pytest.raises(punctual.ModelNotFound, match='no version "7" of model "mlp"'):
        client.infer("mlp", ROW, version="7")
    with pytest.raises(punctual.BadInput, match='has no output "z"'):
        client.infer("mlp", ROW, outputs=["z"])
    assert client.infer("mlp", ROW).array.shape == (1, 10)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_deadlines_are_refused_with_what_could_be_met(punctual, emulated, protocol):
    server = emulated(slow=1000)
    url = f"{protocol}://{getattr(server, protocol)}"
    with punctual.Client(url, deadline_ms=700) as client:
        client.metadata("slow")
        with pytest.raises(punctual.DeadlineUnreachable) as raised:
            client.infer("slow", ROW)
        assert raised.value.earliest_deadline_ms >= 1000 and isinstance(raised.value, TimeoutError)
        assert server.metric('punctual_execution_seconds_count{model="slow",version="1"}') == 0
        # The deadline that was named is one that can be kept.
        retry = punctual.Retry(budget_ms=60_000)
        assert client.infer("slow", ROW, retry=retry).array.shape == (1, 10)

        def ask(number):
            try:
                return client.infer("slow", ROW, deadline_ms=2_500)
            except punctual.PunctualError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            results = list(pool.map(ask, range(24)))
        refused = [result for result in results if isinstance(result, punctual.Overloaded)]
        assert refused and all(error.earliest_deadline_ms > 2_500 for error in refused)
        if protocol == "http":
            assert all(error.retry_after == 1.0 for error in refused)
        assert any(isinstance(result, punctual.Result) for result in results)
        assert pickle.loads(pickle.dumps(refused[0])).earliest_deadline_ms == refused[0].earliest_deadline_ms


def test_a_full_server_and_one_that_is_gone(punctual, emulated):
    # The device is busy for longer than everything below takes, on any machine.
    server = emulated("--max-requests", "2", blocker=100_000)
    with punctual.Client(server.http, timeout_s=None) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        held = [pool.submit(client.infer, "blocker", ROW)]
        server.until("the device is busy", lambda: server.metric(STARTED % "blocker") == 1)
        held.append(pool.submit(client.infer, "blocker", ROW))
        server.until("two are in the server", lambda: server.metric("punctual_requests_in_flight") == 2)
        with pytest.raises(punctual.QueueFull) as raised:
            client.infer("blocker", ROW)
        assert raised.value.retry_after == 1.0 and raised.value.status == 503
        server.process.kill()
        for answer in held:
            with pytest.raises(punctual.NoConnection, match="the connection to .* broke"):
                answer.result()
        assert not client.live() and not client.ready()
        with pytest.raises(punctual.NoConnection, match="can't be reached"):
            client.infer("blocker", ROW)


def test_a_server_that_goes_while_it_is_asked_is_a_broken_connection_though_nobody_listens_any_more(punctual):
    """The request is sent on a connection that was used before. It is tried anew, and the reason is still what broke."""
    for asynchronous in (False, True):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            connection.recv(65536)
            listener.close()
            connection.close()

        server = threading.Thread(target=serve)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(punctual.NoConnection, match="the connection to .* broke: .* can't be reached"):
            if asynchronous:

                async def ask():
                    async with punctual.AsyncClient(url) as client:
                        assert await client.live()
                        await client.server_metadata()

                asyncio.run(ask())
            else:
                with punctual.Client(url) as client:
                    assert client.live()
                    client.server_metadata()
        server.join()


def test_a_model_that_changes_is_asked_again_and_one_that_fails_says_so(punctual, tmp_path):
    def put(source, name="net"):
        (tmp_path / name / "1").mkdir(parents=True, exist_ok=True)
        content = (ROOT / ".cache" / "test-models" / source / "1" / "model.onnx").read_bytes()
        (tmp_path / name / "1" / "model.onnx").write_bytes(content)

    put("identity_int32")
    put("failing", "failing")
    measured_with = 'parameters { key: "profile_inputs" value { string_value: "input=3" } }'
    (tmp_path / "failing" / "config.pbtxt").write_text(measured_with)
    server = conftest.start(tmp_path)
    try:
        with punctual.Client(server.http) as client, punctual.Client(server.http) as watching:
            assert client.infer("net", np.arange(5)[None]).array.dtype == np.int32
            put("identity_fp32")
            server.until("the change is seen", lambda: watching.metadata("net").inputs[0].datatype == "FP32")
            assert client.infer("net", np.arange(5)[None]).array.dtype == np.float32
            put("identity_uint8")
            server.until("the change is seen", lambda: watching.metadata("net").inputs[0].datatype == "UINT8")
            # What the client finds itself may be out of date just as well.
            assert client.infer("net", {"input": [[True] * 5]}).array.dtype == np.uint8
            assert client.infer("failing", np.zeros((1, 3))).array.shape == (1, 3)
            with pytest.raises(punctual.BadInput, match="can't compute these inputs: .*cannot be reshaped"):
                client.infer("failing", np.zeros((1, 4)))
    finally:
        server.process.kill()
        server.process.wait()


# What no real server does on demand is played from a script: one answer for each connection or request.


@contextlib.contextmanager
def scripted(*answers, per_connection=1):
    """A server that reads a request and sends the next answer, then closes; None: it says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    script, held = list(answers), []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                for _ in range(per_connection):
                    if not connection.recv(65536) or not script:
                        break
                    answer = script.pop(0)
                    if answer is None:
                        break
                    connection.sendall(answer)
                else:
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in held:
            connection.close()


def http_answer(status, body, headers=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


METADATA = http_answer(200, {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": []})


def reasons():
    """The table of docs/protocol.md: reason, HTTP status, seconds to wait."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| \w+ \|(?: retry after (\d+) s)? \|$", page, re.M)
    assert len(rows) >= 18
    return rows


@pytest.mark.parametrize(("reason", "status", "retry"), reasons())
def test_every_reason_has_its_exception(punctual, reason, status, retry):
    body = {"error": "a sentence", "reason": reason, "earliest_deadline_us": 61250}
    answer = http_answer(status, body, f"retry-after: {retry}\r\n" if retry else "")
    with scripted(METADATA, answer, METADATA) as url, punctual.Client(url) as client:
        with pytest.raises(punctual.PunctualError, match="a sentence") as raised:
            client.infer("m", [1.0])
    error = raised.value
    assert type(error).__name__ == "".join(word.title() for word in reason.split("_"))
    assert getattr(punctual, type(error).__name__) is type(error)
    assert (error.reason, error.status, error.earliest_deadline_ms) == (reason, int(status), 61.25)
    assert error.retry_after == (float(retry) if retry else None)


def test_what_is_not_this_protocol(punctual):
    for answer, kind, said in [
        (b"SSH-2.0-OpenSSH_9.6\r\n", punctual.BadAnswer, "isn't HTTP"),
        (http_answer(200, b"<html>"), punctual.BadAnswer, "isn't JSON"),
        (http_answer(200, {"outputs": [{"name": "y"}]}), punctual.BadAnswer, "isn't what the protocol asks for"),
        (http_answer(200, [1]), punctual.BadAnswer, "isn't what the protocol asks for"),
        (http_answer(502, b"bad gateway"), punctual.PunctualError, "the server answered 502: bad gateway"),
        (http_answer(503, {"error": "new", "reason": "new_reason"}), punctual.PunctualError, "new"),
        (b"HTTP/1.1 200 x\r\ncontent-length: 100\r\n\r\nshort", punctual.NoConnection, "closed before the answer was complete"),
        (b"", punctual.NoConnection, "closed before the answer was complete"),
    ]:
        with scripted(METADATA, answer) as url, punctual.Client(url) as client:
            with pytest.raises(kind, match=re.escape(said)):
                client.infer("m", [1.0])
        with scripted(METADATA, answer) as url:
            with pytest.raises(kind, match=re.escape(said)):
                asyncio.run(punctual.AsyncClient(url).infer("m", [1.0]))
    output = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    for tail, said in [(b"1234", "has 4 bytes, which isn't [2] of FP32"), (b"12", "ends inside output")]:
        answer = http_answer(200, head + tail, f"inference-header-content-length: {len(head)}\r\n")
        with scripted(METADATA, answer) as url, pytest.raises(punctual.BadAnswer, match=re.escape(said)):
            punctual.Client(url).infer("m", [1.0])


def test_answers_in_chunks_and_after_others(punctual):
    body = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    text = json.dumps(body).encode()
    chunks = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks += b"".join(b"%x\r\n%s\r\n" % (1, text[at : at + 1]) for at in range(len(text))) + b"0\r\n\r\n"
    until_the_end = b"HTTP/1.1 200 x\r\n\r\n" + text
    for answer in [chunks, until_the_end]:
        with scripted(METADATA, answer) as url, punctual.Client(url) as client:
            assert client.infer("m", [1.0]).array.tolist() == [1, 2]
        with scripted(METADATA, answer) as url:
            assert asyncio.run(punctual.AsyncClient(url).infer("m", [1.0])).array.tolist() == [1, 2]


def test_a_server_that_says_nothing(punctual):
    with scripted(METADATA, None) as url, punctual.Client(url, grace_ms=50) as client:
        with pytest.raises(punctual.NoAnswer, match="said nothing in time"):
            client.infer("m", [1.0], deadline_ms=500)
    with scripted(METADATA, None) as url:
        with pytest.raises(punctual.NoAnswer, match="said nothing in time"):
            asyncio.run(punctual.AsyncClient(url, timeout_s=0.5).infer("m", [1.0]))
    with scripted(METADATA) as url, punctual.Client(url, grace_ms=30_000) as client:
        # The time is over when the metadata has come: nothing is sent that could only be refused.
        with pytest.raises(punctual.DeadlineMissed, match="were over before the request could be sent"):
            client.infer("m", [1.0], deadline_ms=0.001)


def test_connections_that_the_server_closed_while_idle_are_made_anew(punctual):
    good = http_answer(200, {"model_name": "m", "outputs": []})
    # Says that the connection stays, and closes it.
    with scripted(METADATA, good, good, good) as url, punctual.Client(url) as client:
        for _ in range(3):
            assert client.infer("m", [1.0]).outputs == {}

    async def ask(url):
        async with punctual.AsyncClient(url) as client:
            for _ in range(3):
                assert (await client.infer("m", [1.0])).outputs == {}

    with scripted(METADATA, good, good, good) as url:
        asyncio.run(ask(url))


def test_addresses_and_settings_that_make_no_sense(punctual):
    for url, said in [("ftp://x", "ftp"), ("http://", "names no host"), ("grpc://", "names no host"), ("grpc://x/y", "has a path")]:
        with pytest.raises(ValueError, match=said):
            punctual.Client(url).metadata("m")
    with pytest.raises(ValueError, match="deadline_ms is 0"):
        punctual.Client().infer("m", ROW, deadline_ms=0)
    with pytest.raises(ValueError, match="line ends"):
        punctual.Client(headers={"x": "a\r\nb: c"}).metadata("m")
    with pytest.raises(ValueError, match="connections is 0"):
        punctual.Client(connections=0)
    with pytest.raises(ValueError, match="budget"):
        punctual.Retry(budget_ms=0)


def test_retries_follow_what_the_server_says(punctual):
    from punctual.retry import Again

    retry = punctual.Retry(budget_ms=1000, attempts=3)
    late = punctual.DeadlineUnreachable("late", earliest_deadline_ms=80)
    assert retry.after(late, 1, 50, 900) == Again(0.0, 100.0)
    assert retry.after(late, 1, 50, 90) == Again(0.0, 90)
    assert retry.after(late, 1, 50, 70) is None
    assert retry.after(late, 3, 50, 900) is None
    busy = punctual.Overloaded("busy", earliest_deadline_ms=5000, retry_after=0.5)
    assert retry.after(busy, 1, 50, 900) == Again(0.5, 50)
    assert retry.after(busy, 1, None, 900) == Again(0.5, 400)
    assert retry.after(busy, 1, 50, 400) is None
    assert retry.after(punctual.BadInput("no", retry_after=0.1), 1, 50, 900) is None
    assert retry.after(punctual.DeadlineMissed("no", earliest_deadline_ms=10), 1, 50, 900) is None


def test_retry_after_is_waited_for(punctual):
    busy = http_answer(503, {"error": "busy", "reason": "queue_full"}, "retry-after: 0\r\n")
    good = http_answer(200, {"model_name": "m", "outputs": []})
    retry = punctual.Retry(budget_ms=30_000)
    with scripted(METADATA, busy, busy, good) as url, punctual.Client(url) as client:
        assert client.infer("m", [1.0], retry=retry).outputs == {}
    with scripted(METADATA, busy, busy, good) as url:
        assert asyncio.run(punctual.AsyncClient(url).infer("m", [1.0], retry=retry)).outputs == {}
    with scripted(METADATA, busy, busy, good) as url, pytest.raises(punctual.QueueFull):
        punctual.Client(url).infer("m", [1.0], retry=punctual.Retry(budget_ms=30_000, attempts=2))


@contextlib.contextmanager
def tls_in_front_of(address):
    """What a proxy does: https outside, the server inside. Gives the URL and a context that trusts it."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def serve():
        while True:
            try:
                outside, _ = listener.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return
            inside = socket.create_connection(address.split(":"))
            for pair in [(outside, inside), (inside, outside)]:
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}", trusting
    finally:
        listener.close()


def test_https(punctual, server):
    image = np.zeros((1, 3, 160, 160), np.float32)
    with tls_in_front_of(server.http) as (url, trusting):
        with punctual.Client(url, ssl_context=trusting) as client:
            assert client.infer("mlp", ROW).array.shape == (1, 10)
            assert client.infer("rapidocr-det", image).array.size
        with punctual.Client(url) as client, pytest.raises(punctual.NoConnection, match="certificate"):
            client.infer("mlp", ROW)

        async def ask():
            async with punctual.AsyncClient(url, ssl_context=trusting) as client:
                return (await client.infer("rapidocr-det", image)).array.size

        assert asyncio.run(ask())
