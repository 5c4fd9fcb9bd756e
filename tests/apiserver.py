"""A real kube-apiserver with an etcd, on the loopback, for what a chart sends to one.

No kubelet, no scheduler and no controllers: what is kept here starts nothing. `made_by` therefore
gives what the controller of a StatefulSet would send: of the Pods of a set the server checks no
more than the types of their fields, until somebody makes one.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certificates import Authority
from invariants import eventually
from ports import free_port

PROGRAM = os.environ.get("TEST_KUBE_APISERVER", "")
"""The kube-apiserver to test with; `make kube` builds one."""

STARTS_S = 120.0
TRIES = 3
"""Starts: another process may take a free port before it is listened at."""

Object = dict[str, Any]


class Refused(Exception):
    """The server said no.

    Attributes:
        status: The status of HTTP.
        message: What the server said, in its words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Ended(Exception):
    """A process that should serve has ended; the text is the end of its output."""


class ApiServer:
    """An API server in processes of its own.

    Args:
        folder: For its data, certificates and logs.
        program: The kube-apiserver.

    Attributes:
        kubeconfig: A file with which Helm and kubectl find it, as a user who may do everything.
    """

    def __init__(self, folder: Path, program: str = PROGRAM) -> None:
        self._folder, self._program = folder, str(Path(program).absolute())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}
        authority = Authority(folder)
        self._ca = authority.path
        self._server, self._user = authority.sign("server"), authority.sign("user")
        self._context = ssl.create_default_context(cafile=authority.path)
        self._context.load_cert_chain(self._user.cert, self._user.key)
        self._port = 0
        # Of accounts, which nobody uses here; old servers read this format alone.
        self._signs = folder / "accounts.key"
        self._signs.write_bytes(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        self.kubeconfig = folder / "kubeconfig"

    def start(self) -> None:
        """Start both, and wait until they are ready.

        Raises:
            Ended: One of them ended at once.
        """
        for number in range(TRIES):
            try:
                self._start(self._folder / f"etcd-{number}")
                break
            except Ended as error:
                self.close()
                if number + 1 == TRIES or "address already in use" not in str(error):
                    raise
        self._write_kubeconfig()

    def _start(self, data: Path) -> None:
        clients, peers, self._port = (free_port() for _ in range(3))
        etcd = shutil.which("etcd")
        assert etcd is not None, "etcd is not installed (Debian: apt install etcd-server)"
        name = f"https://127.0.0.1:{clients}"
        self._run(
            etcd,
            f"--data-dir={data}",
            f"--listen-client-urls={name}",
            f"--advertise-client-urls={name}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--cert-file={self._server.cert}",
            f"--key-file={self._server.key}",
            f"--trusted-ca-file={self._ca}",
            "--client-cert-auth",
            "--unsafe-no-fsync",
        )
        self._run(
            self._program,
            f"--etcd-servers={name}",
            f"--etcd-cafile={self._ca}",
            f"--etcd-certfile={self._user.cert}",
            f"--etcd-keyfile={self._user.key}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={self._server.cert}",
            f"--tls-private-key-file={self._server.key}",
            f"--client-ca-file={self._ca}",
            "--anonymous-auth=false",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._signs}",
            f"--service-account-signing-key-file={self._signs}",
        )
        eventually(self._is_ready, STARTS_S, "kube-apiserver is ready")

    def _run(self, program: str, *options: str) -> None:
        log = self._folder / f"{Path(program).name}.log"
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen([program, *options], stdout=output, stderr=subprocess.STDOUT)
            )

    def _is_ready(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                arguments = process.args
                assert isinstance(arguments, list)
                name = Path(str(arguments[0])).name
                said = (self._folder / f"{name}.log").read_text()
                raise Ended(f"{name} ended with {process.returncode}: {said[-2000:]}")
        try:
            return self.send("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _write_kubeconfig(self) -> None:
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": self._ca,
        }
        user = {"client-certificate": self._user.cert, "client-key": self._user.key}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)

    def close(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    # --- requests ---

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
    ) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its answer."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=60
        )
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Return what answers a request.

        Raises:
            Refused: The server does not do it.
        """
        status, data = self.send(method, path, body, kind)
        answer = json.loads(data)
        if status >= 400:
            raise Refused(status, answer["message"])
        return answer

    def version(self) -> str:
        """Return its version, such as v1.20.2."""
        return str(self.call("GET", "/version")["gitVersion"])

    def path(self, one: Object, *, name: bool = True) -> str:
        """Return where an object is, or with `name=False` the list that it belongs to."""
        api = one["apiVersion"]
        if (api, one["kind"]) not in self._kinds:
            for known in self.call("GET", f"{root(api)}")["resources"]:
                if "/" not in known["name"]:
                    self._kinds[api, known["kind"]] = known["name"], known["namespaced"]
        plural, inside = self._kinds[api, one["kind"]]
        at = root(api)
        if inside:
            at += f"/namespaces/{one['metadata']['namespace']}"
        return f"{at}/{plural}" + (f"/{one['metadata']['name']}" if name else "")

    def apply(self, one: Object, *, dry: bool = False) -> Object:
        """Let an object be as it is here, by server-side apply, with no unknown field.

        Args:
            one: The object.
            dry: Whether nothing is kept.

        Raises:
            Refused: The server does not take it.
        """
        query = {"fieldManager": "tests", "force": "false", "fieldValidation": "Strict"}
        if dry:
            query["dryRun"] = "All"
        where = f"{self.path(one)}?{urlencode(query)}"
        kept: Object = self.call("PATCH", where, one, "application/apply-patch+yaml")
        return kept

    def get(self, one: Object) -> Object | None:
        """Return an object as it is kept, or None."""
        try:
            kept: Object = self.call("GET", self.path(one))
        except Refused as refused:
            if refused.status != 404:
                raise
            return None
        return kept

    def delete(self, one: Object) -> None:
        """Delete an object.

        Raises:
            Refused: There is none.
        """
        self.call("DELETE", f"{self.path(one)}?gracePeriodSeconds=0&propagationPolicy=Background")

    def namespace(self, name: str) -> str:
        """Make a namespace, with the account that a controller makes in each."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"name": "default", "namespace": name}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        return name

    def define(self, definition: Object) -> None:
        """Make a kind known, and wait until it is."""
        self.apply(definition)
        spec = definition["spec"]
        at = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        eventually(lambda: self.send("GET", at)[0] == 200, STARTS_S, f"{at} is served")
        # Server-side apply knows its fields a little later than requests know its address.
        wanted = f'.{spec["names"]["kind"]}"'
        eventually(
            lambda: wanted.encode() in self.send("GET", "/openapi/v2")[1],
            STARTS_S,
            f"the schema of {spec['names']['kind']} is published",
        )


def root(api: str) -> str:
    """Return the path of an API version."""
    return f"/apis/{api}" if "/" in api else f"/api/{api}"


@contextmanager
def serving(folder: Path) -> Iterator[ApiServer]:
    """Start an API server, and end it after the block."""
    server = ApiServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.close()


def made_by(loader: Object) -> list[Object]:
    """Return the claims and the first Pod that a controller would make of a StatefulSet."""
    name, namespace = loader["metadata"]["name"], loader["metadata"]["namespace"]
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(loader["spec"]["template"])}
    pod["metadata"] |= {"name": f"{name}-0", "namespace": namespace}
    pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = f"{name}-0"
    pod["spec"] |= {"hostname": f"{name}-0", "subdomain": loader["spec"]["serviceName"]}
    claims = []
    for template in loader["spec"].get("volumeClaimTemplates", []):
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(template)}
        volume = template["metadata"]["name"]
        claim["metadata"] |= {"name": f"{volume}-{name}-0", "namespace": namespace}
        pod["spec"]["volumes"].append(
            {"name": volume, "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
        )
        claims.append(claim)
    return [*claims, pod]
