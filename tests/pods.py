"""Pods of the rendered chart, run as processes: what a kubelet and a container runtime do of it.

Bubblewrap gives a root that cannot be written to, mounts, a user, no capabilities and a tree of
processes of its own, whose first process is the container's. There is no network of its own: an
address of 127.0.0.0/8 takes the place of the Pod's, and a file of hosts that of DNS. There is no
cgroup: memory and CPU are not bounded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charts import Objects, environment, objects, of

BIN = sysconfig.get_path("scripts")
ROOT = Path(__file__).parents[1]


def why_not() -> str | None:
    """Return why no Pod can be run here, or None."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian: apt install bubblewrap)"
    tried = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc"]
    done = subprocess.run([*tried, "true"], capture_output=True, text=True, check=False)
    return f"bubblewrap may not be used here: {done.stderr.strip()}" if done.returncode else None


class Image:
    """What containers are made of.

    Args:
        root: The unpacked image that `make image` leaves, beside a file of its configuration; None
            = the system, this Python and this checkout stand for it.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.mounts = _checkout() if root is None else _unpacked(root)
        self.entry, self.variables = ["penstockd"], {"PATH": f"{BIN}:/usr/bin:/bin"}
        if root is None and (more := os.environ.get("PYTHONPATH")):
            self.variables["PYTHONPATH"] = more  # it is part of this Python
        if root is not None:
            config = json.loads(root.with_suffix(".json").read_text())["OCIv1"]["config"]
            self.entry = config["Entrypoint"]
            self.variables = dict(one.split("=", 1) for one in config["Env"])


def _unpacked(root: Path) -> list[str]:
    """Return the mounts of an image: all that it has, in a root that takes further mount points.

    A runtime makes mount points that an image lacks before it closes the root, as bubblewrap does.
    """
    options = []
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), f"/{path.name}"]
        elif path.name not in ("dev", "proc", "sys"):
            options += ["--ro-bind", str(path), f"/{path.name}"]
    return options


def _checkout() -> list[str]:
    """Return the mounts of the system, this Python and penstock."""
    there = ["/usr", "/etc", sys.base_prefix, sys.prefix, str(ROOT), *filter(None, sys.path)]
    options = []
    for path in dict.fromkeys(there):
        if Path(path).is_dir():
            options += ["--ro-bind", path, path]
    for name in ("bin", "sbin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return options


class Cluster:
    """Volumes, ConfigMaps, secrets and names, as they outlive a Pod.

    Args:
        folder: Where they are kept.
        found: The rendered objects.
        secrets: Files of secrets, by the name of the secret.
        image: What containers are made of.
    """

    def __init__(
        self,
        folder: Path,
        found: Objects,
        secrets: Mapping[str, Mapping[str, bytes]] | None = None,
        image: Image | None = None,
    ) -> None:
        self.folder, self.image = folder, image or Image()
        self.hosts = folder / "hosts"
        self.hosts.write_text("")
        for one in of(found, "ConfigMap"):
            files = {name: text.encode() for name, text in one["data"].items()}
            self._keep("configMap", one["metadata"]["name"], files, 0o644)
        for name, secret in (secrets or {}).items():
            self._keep("secret", name, secret, 0o440)

    def _keep(self, kind: str, name: str, files: Mapping[str, bytes], mode: int) -> None:
        """Write files as a kubelet mounts them: links to a folder that is swapped as a whole."""
        folder = self.folder / kind / name
        (folder / "..1").mkdir(parents=True)
        (folder / "..data").symlink_to("..1")
        for file, content in files.items():
            (folder / "..1" / file).write_bytes(content)
            (folder / "..1" / file).chmod(mode)
            (folder / file).symlink_to(f"..data/{file}")

    def name(self, address: str, *names: str) -> None:
        """Let names lead to an address; it replaces all that were given before."""
        self.names({address: names})

    def names(self, named: Mapping[str, Sequence[str]]) -> None:
        """Let names lead to addresses, one name to several too; these replace all given before."""
        lines = [f"{address} {' '.join(names)}\n" for address, names in named.items()]
        self.hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def sandbox(
        self,
        spec: dict[str, Any],
        claims: Sequence[str],
        command: Sequence[str],
        address: str,
        pod: str = "",
    ) -> list[str]:
        """Return the command line that runs the only container of a Pod, by the name of the Pod."""
        [container] = spec["containers"]
        volumes = {one["name"]: one for one in spec["volumes"]}
        user, group = (spec["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
        line = ["bwrap", "--die-with-parent", "--as-pid-1", "--unshare-user", "--unshare-pid"]
        line += ["--unshare-ipc", "--unshare-uts", "--uid", str(user), "--gid", str(group)]
        line += ["--cap-drop", "ALL", "--clearenv"]
        for variable, value in {**self.image.variables, **environment(container)}.items():
            value = value.replace("0.0.0.0:", f"{address}:")  # the Pod's own address
            line += ["--setenv", variable, value]
        for one in container.get("env", []):
            if "valueFrom" in one:
                line += ["--setenv", one["name"], self._value(one["valueFrom"], pod)]
        line += [*self.image.mounts, "--proc", "/proc", "--dev", "/dev"]
        for mount in container["volumeMounts"]:
            line += self._mount(mount, volumes.get(mount["name"]), claims, pod)
        over = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        options = iter(self.image.mounts)
        for option, source, at in zip(options, options, options, strict=True):
            if over.intersection(Path(at).parents):  # such as a checkout below /tmp
                line += [option, source, at]
        line += ["--ro-bind", str(self.hosts), "/etc/hosts", "--chdir", "/"]
        if container["securityContext"]["readOnlyRootFilesystem"]:
            line += ["--remount-ro", "/"]
        return [*line, "--", *command]

    def _value(self, source: dict[str, Any], pod: str) -> str:
        """Return what a variable has from elsewhere."""
        if "fieldRef" in source:
            assert source["fieldRef"] == {"fieldPath": "metadata.name"}
            return pod
        place = source["secretKeyRef"]
        return (self.folder / "secret" / place["name"] / place["key"]).read_text()

    def _mount(
        self,
        mount: dict[str, Any],
        volume: dict[str, Any] | None,
        claims: Sequence[str],
        pod: str,
    ) -> list[str]:
        at = mount["mountPath"]
        if volume is not None and volume.get("emptyDir", {}).get("medium") == "Memory":
            return ["--size", str(volume["emptyDir"]["sizeLimit"]), "--tmpfs", at]
        if volume is not None and "emptyDir" in volume:
            return ["--perms", "1777", "--tmpfs", at]
        if volume is None:
            assert mount["name"] in claims
            folder = self.folder / "claims" / f"{mount['name']}-{pod}"
            folder.mkdir(parents=True, exist_ok=True)
            return ["--bind", str(folder), at]
        if "hostPath" in volume:
            return ["--ro-bind", volume["hostPath"]["path"], at]
        kind = "configMap" if "configMap" in volume else "secret"
        name = volume[kind]["name" if kind == "configMap" else "secretName"]
        return ["--ro-bind", str(self.folder / kind / name), at]

    def run(self, command: Sequence[str], pod: dict[str, Any], **options: Any) -> Any:
        """Start a command where a Pod without a port would run it."""
        line = self.sandbox(pod["spec"], (), command, "127.0.0.1")
        return subprocess.Popen(line, text=True, stdout=subprocess.PIPE, **options)


class Node:
    """A Pod of a StatefulSet, with a kubelet that follows its probes.

    Args:
        cluster: Where it runs.
        stateful_set: The rendered object.
        address: The address of the Pod.
        ordinal: Which of its Pods it is.
    """

    def __init__(
        self, cluster: Cluster, stateful_set: dict[str, Any], address: str, ordinal: int = 0
    ) -> None:
        self.address = address
        self.name = f"{stateful_set['metadata']['name']}-{ordinal}"
        self._spec = stateful_set["spec"]["template"]["spec"]
        [self._container] = self._spec["containers"]
        claims = stateful_set["spec"].get("volumeClaimTemplates", [])
        self._line = cluster.sandbox(
            self._spec,
            [one["metadata"]["name"] for one in claims],
            [*cluster.image.entry, *self._container["args"]],
            address,
            self.name,
        )
        self.log: list[str] = []
        self._begun = 0.0

    def start(self) -> Node:
        """Start the container."""
        reading, writing = os.pipe()
        line = [self._line[0], "--info-fd", str(writing), *self._line[1:]]
        self._process = subprocess.Popen(
            line, stderr=subprocess.PIPE, text=True, pass_fds=[writing]
        )
        self._begun = time.monotonic()
        os.close(writing)
        self._logging = threading.Thread(target=self._collect, daemon=True)
        self._logging.start()
        with os.fdopen(reading) as info:
            said = info.read()
        assert said, self.wait()
        self.pid: int = json.loads(said)["child-pid"]
        return self

    def _collect(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self.log.extend(lines)

    def probe(self, name: str) -> bool:
        """Ask a probe once."""
        probe = self._container[name]
        ports = {one["name"]: one["containerPort"] for one in self._container["ports"]}
        get = probe["httpGet"]
        url = f"http://{self.address}:{ports[get['port']]}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as reply:
                return 200 <= reply.status < 400
        except (urllib.error.URLError, TimeoutError):
            return False

    def until_ready(self) -> float:
        """Ask the start-up probe, then readiness; return the seconds since the start.

        Raises:
            AssertionError: It ended, or the patience of the probe did.
        """
        probe = self._container["startupProbe"]
        for _ in range(min(60, probe["failureThreshold"])):
            asked = time.monotonic()
            if self.probe("startupProbe"):
                break
            assert self._process.poll() is None, self.wait()
            time.sleep(max(0.0, asked + probe["periodSeconds"] - time.monotonic()))
        assert self.probe("readinessProbe"), self.log
        return time.monotonic() - self._begun

    def stop(self) -> tuple[int, float]:
        """Stop it as a kubelet does; return its exit status and the seconds since SIGTERM.

        Raises:
            subprocess.TimeoutExpired: It had to be killed.
        """
        command = self._container["lifecycle"]["preStop"]["exec"]["command"]
        begun = time.monotonic()
        subprocess.run(command, check=True)
        left_s = self._spec["terminationGracePeriodSeconds"] - (time.monotonic() - begun)
        os.kill(self.pid, signal.SIGTERM)
        told = time.monotonic()
        status = self._process.wait(timeout=left_s)
        self._logging.join()
        return status, time.monotonic() - told

    def wait(self) -> str:
        """Wait for its end, and return what it said."""
        self._process.wait(timeout=60)
        self._logging.join()
        return "".join(self.log)

    def close(self) -> None:
        """End whatever is left."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    def status(self) -> dict[str, str]:
        """Return what the kernel says of the container's first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def mounts(self) -> dict[str, set[str]]:
        """Return its mount points with their options."""
        found = {}
        for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines():
            fields = line.split()
            found[fields[4]] = set(fields[5].split(","))
        return found


class World:
    """A rendered chart with one group, its cluster, and the Pods that run in it.

    Args:
        folder: For volumes and ConfigMaps.
        values: Of the chart.
        image: What containers are made of.
        secrets: Files of secrets, by the name of the secret.
    """

    def __init__(
        self,
        folder: Path,
        values: dict[str, Any],
        image: Image | None = None,
        secrets: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        found = objects(values)
        [self.stateful_set] = of(found, "StatefulSet")
        [self.test] = of(found, "Pod")
        self.cluster = Cluster(folder, found, secrets, image)
        self.target: str = self.test["spec"]["containers"][0]["args"][0]
        name = self.stateful_set["metadata"]["name"]
        self.jobs = folder / "configMap" / f"{name}-jobs" / "penstock.yaml"
        self._nodes: list[Node] = []

    def node(self, address: str, ordinal: int = 0) -> Node:
        """Start a Pod of the set at an address; `publish` lets its name lead there."""
        node = Node(self.cluster, self.stateful_set, address, ordinal).start()
        self._nodes.append(node)
        return node

    def publish(self, node: Node | None) -> None:
        """Give a ready Pod its name, as the headless Service does; None = no Pod is ready."""
        if node is None:
            self.cluster.name("127.0.0.1", "localhost")
        else:
            self.cluster.name(node.address, self.target.rpartition(":")[0])

    def publish_all(self, nodes: Sequence[Node]) -> None:
        """Give the ready Pods the name of their group, and each its own."""
        service = self.stateful_set["metadata"]["name"]
        one, _, domain = self.target.rpartition(":")[0].partition(".")
        assert one == f"{service}-0"
        shared = f"{service}.{domain.partition('.')[2]}"
        self.cluster.names({node.address: [shared, f"{node.name}.{domain}"] for node in nodes})

    def close(self) -> None:
        """End what runs."""
        for node in self._nodes:
            node.close()

    def compare(self) -> str:
        """Run the Pod of `helm test`; return what it says, which it ends with success.

        Raises:
            AssertionError: It failed.
        """
        [container] = self.test["spec"]["containers"]
        run = self.cluster.run([*container["command"], *container["args"]], self.test)
        said: str = run.communicate(timeout=120)[0]
        assert run.returncode == 0, said
        return said


def addresses() -> tuple[str, str]:
    """Return two addresses of the loopback that no other process of the tests has."""
    here = os.getpid()
    first, second = (f"127.{64 + k}.{here >> 8 & 255}.{here & 255 or 1}" for k in range(2))
    return first, second
