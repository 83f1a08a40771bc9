"""TLS on every port: who can connect, which certificate they see, and how it is replaced."""

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import socket
import ssl
import subprocess

import pytest
import tritonclient.grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import conftest
from test_rights import INFER, infer_inputs, make_key, serving


class Authority:
    """Somebody who signs certificates."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.certificate = self.sign(self.subject, self.key, x509.BasicConstraints(ca=True, path_length=None))
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, subject, key, *extensions):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name):
        """A certificate and its key, in files; returns their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
        certificate = self.sign(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key, names)
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        paths[1].write_bytes(key.private_bytes(*form))
        return paths


def context(authority, client=None, protocols=None):
    """What a client connects with."""
    made = ssl.create_default_context(cafile=authority.path)
    if client:
        made.load_cert_chain(*client)
    if protocols:
        made.set_alpn_protocols(protocols)
    return made


def connect(address, made):
    """A connection on which both have agreed."""
    host, port = address.rsplit(":", 1)
    return made.wrap_socket(socket.create_connection((host, int(port)), timeout=30), server_hostname=host)


def name_on(address, made):
    """Whose certificate the server shows."""
    with connect(address, made) as connection:
        return dict(pair[0] for pair in connection.getpeercert()["subject"])["commonName"]


def get(address, path, made, body=None):
    connection = http.client.HTTPSConnection(address, timeout=30, context=made)
    with contextlib.closing(connection):
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        answer = connection.getresponse()
        return answer.status, answer.read()


def infer_over_grpc(server, authority, client=None):
    files = dict(zip(["certificate_chain", "private_key"], map(str, client))) if client else {}
    options = dict(ssl=True, root_certificates=str(authority.path), **files)
    with tritonclient.grpc.InferenceServerClient(server.grpc, **options) as asked:
        return asked.infer("net", infer_inputs(tritonclient.grpc), client_timeout=30)


def files(certificate, key):
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)]


def test_every_port_is_encrypted_and_certificates_are_replaced_without_a_restart(tmp_path):
    authority = Authority(tmp_path, "authority")
    first, second = authority.issue("first"), authority.issue("second")
    served = tmp_path / "served.crt", tmp_path / "served.key"

    def put(pair):
        for source, target in zip(pair, served):
            target.with_suffix(".new").write_bytes(source.read_bytes())
            os.replace(target.with_suffix(".new"), target)

    put(first)
    with serving(tmp_path, *files(*served)) as server:
        made = context(authority)
        assert get(server.http, "/v2/models/net/infer", made, INFER)[0] == 200
        assert get(server.http, "/readyz", made)[0] == 200
        status, text = get(server.metrics, "/metrics", made)
        assert status == 200 and b"punctual_requests_total" in text
        assert infer_over_grpc(server, authority).as_numpy("output").shape == (1, 10)
        # What is spoken is agreed on.
        for address, offered, agreed in [
            (server.http, ["h2", "http/1.1"], "h2"),
            (server.http, ["http/1.1"], "http/1.1"),
            (server.grpc, ["h2"], "h2"),
            (server.metrics, ["h2", "http/1.1"], "http/1.1"),
        ]:
            with connect(address, context(authority, protocols=offered)) as connection:
                assert connection.selected_alpn_protocol() == agreed
        # Nothing is said in the clear.
        for address in [server.http, server.grpc, server.metrics]:
            with socket.create_connection(address.rsplit(":", 1), timeout=30) as plain:
                plain.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP" not in plain.recv(1000)
            # A certificate that its signer doesn't vouch for is the client's to refuse.
            with pytest.raises(ssl.SSLCertVerificationError):
                connect(address, ssl.create_default_context())
            assert name_on(address, made) == "first"

        kept = http.client.HTTPSConnection(server.http, timeout=30, context=made)
        kept.request("GET", "/v2")
        assert kept.getresponse().read()
        put(second)
        server.until("the new certificate is shown", lambda: name_on(server.http, made) == "second")
        assert name_on(server.grpc, made) == name_on(server.metrics, made) == "second"
        kept.request("GET", "/v2")
        assert kept.getresponse().status == 200, "connections that are open go on"
        kept.close()
        served[1].write_text("nonsense")
        server.until("it is said", lambda: "stay as they were" in (tmp_path / "log").read_text())
        assert name_on(server.http, made) == "second"


def test_clients_need_a_certificate_where_that_is_asked(tmp_path):
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    client, stranger = authority.issue("client"), other.issue("stranger")
    with serving(tmp_path, *files(*authority.issue("server")), "--tls-client-ca", str(authority.path)) as server:
        for address, path in [(server.http, "/readyz"), (server.metrics, "/metrics")]:
            assert get(address, path, context(authority, client))[0] == 200
            for wrong in [None, stranger]:
                with pytest.raises(OSError):
                    get(address, path, context(authority, wrong))
        assert infer_over_grpc(server, authority, client)
        for wrong in [None, stranger]:
            with pytest.raises(tritonclient.grpc.InferenceServerException, match="UNAVAILABLE"):
                infer_over_grpc(server, authority, wrong)


def load(*options, **environment):
    """What `punctual load` has measured; or why it could not."""
    command = [conftest.binary(), "load", "--json", "--model", "net", "--concurrency", "2", "--duration", "0.3", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    return json.loads(done.stdout)["classes"][0] if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("protocol", ["http-binary", "http-json", "grpc"])
def test_the_load_generator_has_a_key_a_certificate_and_trusts_those_it_was_told_of(tmp_path, protocol):
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    own = dict(zip(["--tls-certificate", "--tls-key"], authority.issue("client")))
    own = [argument for pair in own.items() for argument in pair]
    (key, line), secret = make_key("web", "infer", "read"), tmp_path / "secret"
    (tmp_path / "keys").write_text(line)
    secret.write_text(key + "\n")
    asks = [*files(*authority.issue("server")), "--tls-client-ca", str(authority.path), "--api-keys", str(tmp_path / "keys")]
    with serving(tmp_path, *asks) as server:
        address = server.grpc if protocol == "grpc" else server.http
        # Written either way, it is a certificate's name.
        urls = [address, f"https://localhost:{address.rsplit(':', 1)[1]}"]
        trusts, known = ["--protocol", protocol, "--tls-ca", authority.path], ["--api-key-file", secret]
        for url in urls:
            measured = load("--url", url, *trusts, *own, *known)
            assert measured["successes"] > 0 and measured["successes"] == measured["requests"], measured
        assert load("--url", address, *trusts, *own, PUNCTUAL_API_KEY=key)["successes"] > 0
        assert "asks for a key" in load("--url", address, *trusts, *own)
        assert "none of the server's keys" in load("--url", address, *trusts, *own, PUNCTUAL_API_KEY="punctual-00")
        for options in [
            ["--url", address, "--protocol", protocol, "--tls-ca", other.path, *own, *known],
            # It shows no certificate, which the server says once the client thinks that all is well.
            ["--url", address, *trusts, *known],
            # Nothing is said in the clear.
            ["--url", f"http://{address}", "--protocol", protocol, *known],
        ]:
            said = load(*options)
            assert "is the server up?" in said or "the connection was lost" in said, said


def test_files_that_make_no_sense_are_sentences(tmp_path):
    authority = Authority(tmp_path, "authority")
    (certificate, key), (_, other_key) = authority.issue("a"), authority.issue("b")
    empty = tmp_path / "empty"
    empty.write_text("")
    for options, said in [
        (["--tls-certificate", str(certificate)], "--tls-key"),
        (["--tls-key", str(key)], "--tls-certificate"),
        (files(tmp_path / "nowhere", key), "nowhere"),
        (files(empty, key), "there is no certificate in it"),
        (files(certificate, empty), "no private key"),
        (files(certificate, other_key), "doesn't fit --tls-key"),
        ([*files(certificate, key), "--tls-client-ca", str(empty)], "--tls-client-ca"),
    ]:
        command = [conftest.binary(), "serve", "--devices", "emulated:1", "--model-repository", str(tmp_path), *options]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and said in done.stderr and "panicked" not in done.stderr, done.stderr
