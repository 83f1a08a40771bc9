"""Servers that ask for keys and speak TLS: the files that they are given, and what their clients need."""

import os
import re
import ssl
import subprocess

import trustme

from figures.common import BINARY, Failed


class Access:
    """Keys and certificates in a folder. What a server doesn't ask for is left out."""

    def __init__(self, folder, keys=True, tls=True, binary=BINARY):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.binary, self.has_tls = folder, binary, tls
        self.secrets, self.lines = {}, {}
        self.has_keys = keys
        if tls:
            self.authority = trustme.CA()
            self.ca = folder / "ca.pem"
            self.authority.cert_pem.write_to_path(self.ca)
            self.new_certificate()

    def key(self, name, *rights):
        """The key of that name, which is made if it isn't there."""
        if name not in self.secrets:
            made = subprocess.run([self.binary, "key", name, *rights], capture_output=True, text=True)
            if made.returncode != 0:
                raise Failed(f"punctual key {name}: {made.stderr.strip()}")
            self.secrets[name] = re.search(r"punctual-\w+", made.stderr)[0]
            self.lines[name] = made.stdout
            self.write("secret-" + name, self.secrets[name])
        self.write_keys()
        return self.secrets[name]

    def write_keys(self, more=""):
        """Writes the file of keys anew, with further lines."""
        self.write("keys", "".join(self.lines.values()) + more)

    def new_certificate(self):
        """Gives the server another certificate of the same signer."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        self.write("server.key", issued.private_key_pem.bytes().decode())
        self.write("server.pem", "".join(pem.bytes().decode() for pem in issued.cert_chain_pems))

    def write(self, name, text):
        """Replaces a file in one step."""
        (self.folder / f"{name}.new").write_text(text)
        os.replace(self.folder / f"{name}.new", self.folder / name)

    @property
    def options(self):
        """What the server is told."""
        keys = ["--api-keys", self.folder / "keys"] if self.has_keys else []
        tls = ["--tls-certificate", self.folder / "server.pem", "--tls-key", self.folder / "server.key"]
        return [*keys, *(tls if self.has_tls else [])]

    def load_options(self, name):
        """What `punctual load` is told that has the key of that name."""
        key = ["--api-key-file", self.folder / f"secret-{name}"] if self.has_keys else []
        return [*key, *(["--tls-ca", self.ca] if self.has_tls else [])]

    def headers(self, name):
        return {"Authorization": f"Bearer {self.secrets[name]}"} if self.has_keys else {}

    def context(self):
        """How clients of the ssl module connect; `None` for plainly."""
        return ssl.create_default_context(cafile=self.ca) if self.has_tls else None
