"""A root of Debian, as layers: a test writes into one of its own, above those that it builds on."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from processes import until

VAR = Path(__file__).resolve().parents[2] / "var/packages-test"
# Nothing of this machine's environment is in there.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


class DebianRoot:
    def __init__(self, *below):
        self.folder = Path(tempfile.mkdtemp(prefix="root-", dir=VAR))
        self.layer, work, self.path = (self.folder / name for name in ("layer", "work", "root"))
        for folder in (self.layer, work, self.path):
            folder.mkdir()
        self.layers = [*below, VAR / "debian"]
        lower = ":".join(map(str, self.layers))
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={self.layer},workdir={work}", self.path)
        mount("-t", "proc", "proc", self.path / "proc")
        mount("--rbind", "/dev", self.path / "dev")
        # Names of packages are resolved as on this machine.
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", self.path / "etc" / name)
        self.children = []

    def remove(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        subprocess.run(["umount", "--recursive", "--lazy", self.path], check=True)
        shutil.rmtree(self.folder)

    def above(self):
        """Another root that begins with all that this one has."""
        return DebianRoot(self.layer, *self.layers[:-1])

    def run(self, *words, fails=False, **environment):
        """What a command of root prints, errors included."""
        command = ["chroot", self.path, *words]
        done = subprocess.run(
            [str(word) for word in command],
            env=ENVIRONMENT | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert (done.returncode != 0) == fails, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def file(self, path):
        return self.path / path.lstrip("/")

    def edit(self, path, *changes):
        """Replaces texts of a file, which must have each of them once."""
        text = self.file(path).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{path} has {text.count(old)} of {old!r}"
            text = text.replace(old, new)
        self.file(path).write_text(text)

    def install(self, package):
        """Installs a package file with all that it depends on."""
        shutil.copy(package, self.path / "root")
        self.run("apt-get", "-qq", "update")
        return self.run("apt-get", "-qqy", "--no-install-recommends", "install", f"/root/{package.name}")

    def unit(self, name):
        return Unit(self, name)


class Unit:
    """A service as its unit describes it: who runs it, where, with which environment, and what."""

    def __init__(self, root, name):
        self.root, self.settings = root, {}
        lines = root.file(f"/usr/lib/systemd/system/{name}").read_text().replace("\\\n", " ").splitlines()
        for key, value in (line.split("=", 1) for line in lines if "=" in line and line[0] not in "#;"):
            self.settings.setdefault(key, []).append(value)

    def environment(self):
        found = {}
        for value in self.settings.get("Environment", []):
            found |= dict(word.split("=", 1) for word in shlex.split(value))
        for value in self.settings.get("EnvironmentFile", []):
            file = self.root.file(value.lstrip("-"))
            if value.startswith("-") and not file.exists():
                continue
            lines = [line.strip() for line in file.read_text().splitlines()]
            found |= dict(line.split("=", 1) for line in lines if line and line[0] not in "#;")
        return found

    def start(self, *more):
        """Starts what ExecStart says, with further words, as the user of the unit."""
        user = self.settings["User"][0]
        words = shlex.split(self.settings["ExecStart"][-1].lstrip("@-:+!"))
        where = self.settings.get("WorkingDirectory", ["/"])[0]
        command = ["chroot", self.root.path, "setpriv", "--reuid", user, "--regid", user, "--init-groups"]
        command += ["--no-new-privs", "env", "--chdir", where, "--", *words, *more]
        log = self.root.folder / f"gateway-{len(self.root.children)}.log"
        with log.open("wb") as out:
            child = subprocess.Popen(
                [str(word) for word in command],
                env=ENVIRONMENT | self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        child.log = log
        self.root.children.append(child)
        return child


def ended(child, seconds=60):
    """Waits until a process has ended by itself; its status."""
    until(lambda: child.poll() is not None, f"the gateway ends: {child.log.read_text()}", seconds=seconds)
    return child.returncode


def stop(child):
    os.kill(child.pid, signal.SIGTERM)
    return ended(child)


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)
