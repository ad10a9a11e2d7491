"""The image: what it has, that it sells as an ordinary user on a read-only root, how it is replaced."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

from container import USER, Container, Image
from debian import VAR
from processes import REPO, free_port
from selling import ACCOUNT, CHARGE, TOKENS, Load, Seller, own_sim
from watching import watch

CONF = "/etc/tollgate/tollgate.toml"
LABELS = "title description source revision version created licenses documentation"


def archive(folder):
    (found,) = (VAR / folder).glob("*.oci.tar")
    return found


class ContainerImage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sim = own_sim(cls.addClassCleanup)
        cls.image, cls.next = Image(archive("one")), Image(archive("next"))
        cls.addClassCleanup(cls.image.remove)
        cls.addClassCleanup(cls.next.remove)

    def setUp(self):
        self.state = Path(tempfile.mkdtemp(prefix="state-", dir=VAR))
        self.addCleanup(shutil.rmtree, self.state)
        # As a volume begins: with the owner and the mode that the image has for it.
        os.chown(self.state, USER, USER)
        self.ports = free_port(), free_port()

    def container(self, image):
        address = self.sim.address("vendor_b", TOKENS).replace("127.0.0.1", "localhost")
        environment = {
            "TOLLGATE__LISTEN__HTTP": f"127.0.0.1:{self.ports[0]}",
            "TOLLGATE__LISTEN__ADMIN": f"127.0.0.1:{self.ports[1]}",
            "TOLLGATE__VENDOR__VENDOR_B__ROUTES": f'[{{ name="main", base_url="{address}", key="env:VENDOR_B_KEY" }}]',
            "VENDOR_B_KEY": "vk-test",
        }
        # The simulator's authority stands where the image has the public ones.
        mounts = {"/etc/ssl/certs/ca-certificates.crt": (self.sim.ca, "ro")}
        return Container(image, self.state, environment, mounts)

    def start(self, image):
        container = self.container(image).start()
        self.addCleanup(container.remove)
        return container

    def test_it_says_what_it_is(self):
        config = self.image.config["config"]
        self.assertEqual(config["User"], "65532:65532")
        self.assertEqual([*config["Entrypoint"], *config["Cmd"]], ["tollgate", "--conf", CONF, "serve"])
        for name in LABELS.split():
            self.assertTrue(config["Labels"][f"org.opencontainers.image.{name}"], name)
        revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(config["Labels"]["org.opencontainers.image.revision"], revision.strip())
        self.assertEqual(config["Labels"]["org.opencontainers.image.created"], self.image.config["created"])

    def test_it_has_nothing_to_run_but_the_gateway_and_nothing_to_write_but_the_volume(self):
        programs, writable = [], []
        for path in self.image.root.rglob("*"):
            name, about = f"/{path.relative_to(self.image.root)}", path.lstat()
            self.assertFalse(path.is_symlink(), name)
            if about.st_uid == USER or about.st_mode & stat.S_IWOTH:
                writable.append(name)
            self.assertFalse(about.st_mode & (stat.S_ISUID | stat.S_ISGID), name)
            if path.is_file() and about.st_mode & 0o111:
                programs.append(name)
        self.assertEqual(writable, ["/var/lib/tollgate"])
        libraries = [name for name in programs if ".so" in name]
        self.assertEqual([name for name in programs if name not in libraries], ["/usr/bin/tollgate"])
        # Each library that the loader wants is in there, and none besides.
        (loader,) = (name for name in libraries if "/ld-linux" in name)
        listed = subprocess.run(
            ["chroot", self.image.root, loader, "--list", "/usr/bin/tollgate"],
            env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        self.assertNotIn("not found", listed)
        wanted = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
        self.assertEqual({Path(name).name for name in wanted}, {Path(name).name for name in libraries})

    def test_it_sells_and_loses_no_charge_when_it_is_replaced_under_load(self):
        first = self.container(self.image)
        self.assertIn("a new store was made", first.run("tollgate", "--conf", CONF, "init"))
        first.start()
        self.addCleanup(first.remove)
        running = first

        def command(*words):
            return running.exec("tollgate", "--conf", CONF, *words)

        seller = Seller(command, *self.ports)
        seller.wait_ready()
        status = dict(line.split(":\t", 1) for line in first.status().splitlines() if ":\t" in line)
        self.assertEqual(status["Uid"].split(), [str(USER)] * 4)
        self.assertEqual(status["Gid"].split(), [str(USER)] * 4)
        self.assertEqual((int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]), (0, 0, "1"))
        seller.open_account()
        seller.sell()
        load = Load(seller)
        try:
            load.goes_on()
            self.assertEqual(first.stop(), 0)
            running = self.start(self.next)
            seller.wait_ready()
            load.goes_on()
        finally:
            load.end()
        # Between the two nobody listens, and connections that the first one had not taken are reset.
        # Nobody pays for those: each charge below belongs to an answer.
        self.assertEqual(load.failed, [])
        charges = seller.settled(load.answered)
        self.assertEqual(len(charges), len(load.answered) + 1)
        self.assertEqual(set(charges.values()), {CHARGE})
        command("check", "--books")
        account = json.loads(command("--json", "account", "show", ACCOUNT))
        self.assertEqual((account["held_nano"], account["posted_nano"]), (0, CHARGE * len(charges)))
        self.assertEqual(running.stop(), 0)
        lost = f"{load.refused} connections refused, {load.reset} reset between"
        print(f"\n  {len(load.answered)} calls answered by two containers; {lost}")

    def test_its_boards_show_a_sale_and_its_alerts_a_vendor_that_is_cut(self):
        self.sim = own_sim(self.addCleanup)
        container = self.container(self.image)
        container.run("tollgate", "--conf", CONF, "init")
        container.start()
        self.addCleanup(container.remove)
        seller = Seller(lambda *words: container.exec("tollgate", "--conf", CONF, *words), *self.ports)
        seller.wait_ready()
        seller.open_account()
        watch(seller, self.image.root / "usr/share/tollgate", self.sim)

    def test_rules_of_the_operator_are_mounted_over_those_of_the_image(self):
        rules = self.image.root / "usr/share/tollgate/rules/vendor_b.toml"
        local = self.state.parent / f"{self.state.name}-rules"
        local.mkdir()
        self.addCleanup(shutil.rmtree, local)
        shutil.copy(rules, local)
        container = self.container(self.image)
        told = container.run("tollgate", "--conf", CONF, "check")
        self.assertNotIn("local ", told)
        mount = {"destination": "/etc/tollgate/rules", "type": "bind", "source": str(local), "options": ["rbind", "ro"]}
        container.spec["mounts"].append(mount)
        told = container.run("tollgate", "--conf", CONF, "check")
        self.assertIn("local     /etc/tollgate/rules/vendor_b.toml\n", told)
        shutil.rmtree(container.folder)

    def test_it_is_the_image_that_the_manifests_of_kubernetes_rely_on(self):
        container = self.container(self.image)
        mount = {"destination": "/etc/tollgate", "type": "bind", "options": ["rbind", "ro"]}
        container.spec["mounts"].append(mount | {"source": str(REPO / "packaging/kubernetes/base")})
        told = container.run("tollgate", "--conf", CONF, "check")
        self.assertRegex(told, r"models +[1-9]")
        shutil.rmtree(container.folder)


if __name__ == "__main__":
    unittest.main()
