"""Containers of the image, run by runc: as user 65532, on a root that nobody can write to."""

import json
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from debian import VAR
from processes import until

USER = 65532


class Image:
    """An image, unpacked as a bundle by umoci."""

    def __init__(self, archive):
        self.folder = Path(tempfile.mkdtemp(prefix="image-", dir=VAR))
        layout = self.folder / "layout"
        layout.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", layout], check=True)
        index = json.loads((layout / "index.json").read_text())
        (self.manifest,) = index["manifests"]
        self.tag = self.manifest["annotations"]["org.opencontainers.image.ref.name"]
        blob = lambda digest: json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())  # noqa: E731
        self.config = blob(blob(self.manifest["digest"])["config"]["digest"])
        self.bundle = self.folder / "bundle"
        subprocess.run(["umoci", "unpack", "--image", f"{layout}:{self.tag}", self.bundle], check=True)
        self.root = self.bundle / "rootfs"

    def remove(self):
        shutil.rmtree(self.folder)


class Container:
    """A running container: the network is that of this machine, and `state` is its volume."""

    def __init__(self, image, state, environment, mounts=()):
        self.name = f"tollgate-{uuid.uuid4().hex[:12]}"
        self.folder = Path(tempfile.mkdtemp(prefix="container-", dir=VAR))
        self.log = self.folder / "log"
        spec = json.loads((image.bundle / "config.json").read_text())
        spec["root"] = {"path": str(image.root), "readonly": True}
        process = spec["process"]
        process["terminal"] = False
        process["noNewPrivileges"] = True
        process["capabilities"] = {}
        process["env"] += [f"{name}={value}" for name, value in environment.items()]
        spec["linux"]["namespaces"] = [kind for kind in spec["linux"]["namespaces"] if kind["type"] != "network"]
        volumes = {"/var/lib/tollgate": (state, "rw"), "/etc/hosts": ("/etc/hosts", "ro"), **dict(mounts)}
        spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] not in volumes]
        for path, (source, access) in volumes.items():
            options = ["rbind", access, "nosuid", "nodev"]
            mount = {"destination": path, "type": "bind", "source": str(source), "options": options}
            spec["mounts"].append(mount)
        (self.folder / "config.json").write_text(json.dumps(spec))
        self.spec = spec

    def run(self, *words):
        """Runs a command in a container of its own; what it prints."""
        spec = self.spec | {"process": self.spec["process"] | {"args": list(words)}}
        folder = Path(tempfile.mkdtemp(prefix="command-", dir=VAR))
        try:
            (folder / "config.json").write_text(json.dumps(spec))
            command = ["runc", "run", "--bundle", folder, f"{self.name}-{uuid.uuid4().hex[:6]}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            return done.stdout
        finally:
            shutil.rmtree(folder)

    def start(self):
        with self.log.open("wb") as out:
            command = ["runc", "run", "--bundle", self.folder, self.name]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return self

    def exec(self, *words):
        """Runs a command in the running container; what it prints."""
        command = ["runc", "exec", self.name, *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def status(self):
        """What the kernel says of its process."""
        state = subprocess.run(["runc", "state", self.name], capture_output=True, text=True, check=True)
        return Path(f"/proc/{json.loads(state.stdout)['pid']}/status").read_text()

    def stop(self):
        """Stops it as a container engine does; its status."""
        subprocess.run(["runc", "kill", self.name, "TERM"], check=True)
        until(lambda: self.child.poll() is not None, f"the container ends: {self.log.read_text()}", seconds=60)
        return self.child.returncode

    def remove(self):
        if self.child.poll() is None:
            subprocess.run(["runc", "kill", self.name, "KILL"], check=False)
            self.child.wait(timeout=30)
        shutil.rmtree(self.folder)
