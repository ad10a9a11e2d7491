"""The Debian package in a clean root: what it brings, that it sells, how it is replaced and removed."""

import json
import re
import shutil
import stat
import subprocess
import unittest

from debian import VAR, DebianRoot, ended, stop
from processes import free_port
from selling import ACCOUNT, CHARGE, TOKENS, Load, Seller, own_sim
from watching import watch

CONF = "/etc/tollgate/tollgate.toml"
STATE = "/var/lib/tollgate"


def package(folder):
    (found,) = (VAR / folder).glob("*.deb")
    return found


class DebianPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sim = own_sim(cls.addClassCleanup)
        cls.installed = DebianRoot()
        cls.addClassCleanup(cls.installed.remove)
        cls.told = cls.installed.install(package("one"))

    def setUp(self):
        self.root = self.installed.above()
        self.addCleanup(self.root.remove)
        ports = free_port(), free_port()
        self.seller = Seller(self.tollgate, *ports)

    def tollgate(self, *words, **options):
        """A command as the documents tell an operator to run it."""
        return self.root.run("runuser", "-u", "tollgate", "--", "tollgate", "--conf", CONF, *words, **options)

    def configure(self):
        """What an operator has to do: an authority, the key of a vendor; here also other ports and an address."""
        address = self.sim.address("vendor_b", TOKENS).replace("127.0.0.1", "localhost")
        text = self.root.file(CONF).read_text()
        section = re.compile(r"(?ms)^\[vendor\.vendor_b\]\n(?:provider = [^\n]*\n)?routes = \[.*?\]$")
        self.assertEqual(len(section.findall(text)), 1)
        route = f'{{ name = "main", base_url = "{address}", key = "env:VENDOR_B_KEY" }}'
        text = section.sub(f"[vendor.vendor_b]\nroutes = [{route}]", text)
        self.root.file(CONF).write_text(text)
        self.root.edit(
            CONF,
            ('http = "127.0.0.1:8080"', f'http = "127.0.0.1:{self.seller.http_port}"'),
            ('admin = "127.0.0.1:9090"', f'admin = "127.0.0.1:{self.seller.admin_port}"'),
        )
        self.root.edit("/etc/tollgate/vendors.env", ("#VENDOR_B_KEY=", "VENDOR_B_KEY=vk-test"))
        shutil.copy(self.sim.ca, self.root.file("/usr/local/share/ca-certificates/sim.crt"))
        self.root.run("update-ca-certificates")

    def start(self, *more):
        gateway = self.root.unit("tollgate.service").start(*more)
        self.seller.wait_ready()
        return gateway

    def test_what_is_installed_is_all_there(self):
        self.assertIn("a new store was made", self.told)
        self.assertIn("examples", self.tollgate("check"))
        for path in (STATE, f"{STATE}/tollgate.db"):
            self.assertEqual(self.root.run("stat", "-c", "%U:%G", path).strip(), "tollgate:tollgate", path)
        modes = {
            "/usr/bin/tollgate": 0o755,
            STATE: 0o700,
            f"{STATE}/tollgate.db": 0o600,
            CONF: 0o640,
            "/etc/tollgate/vendors.env": 0o600,
            "/usr/share/tollgate/rules/vendor_b.toml": 0o644,
            "/usr/share/tollgate/prometheus/tollgate.rules.yml": 0o644,
            "/usr/share/tollgate/grafana/money.json": 0o644,
            "/usr/share/tollgate/tollgate.cdx.json": 0o644,
            "/usr/share/doc/tollgate/copyright": 0o644,
        }
        for path, mode in modes.items():
            self.assertEqual(stat.S_IMODE(self.root.file(path).stat().st_mode), mode, path)
        kept = self.root.run("dpkg-query", "--show", "--showformat", "${Conffiles}", "tollgate")
        for path in (CONF, "/etc/tollgate/vendors.env"):
            self.assertIn(f"{path} ", kept)
        owner = self.root.run("getent", "passwd", "tollgate").split(":")
        self.assertEqual(owner[5:], [STATE, "/usr/sbin/nologin\n"])
        # It starts when somebody says so.
        enabled = list(self.root.file("/etc/systemd/system").glob("**/tollgate*"))
        self.assertEqual(enabled, [])

    def test_pages_and_completions_tell_of_each_command(self):
        helped = re.search(r"(?s)Commands:\n(.*?)\n\n", self.root.run("tollgate", "--help"))[1]
        commands = re.findall(r"(?m)^  (\w+)", helped)
        self.assertIn("serve", commands)
        pages = self.root.file("/usr/share/man/man1")
        for command in commands:
            if command != "help":
                page = self.root.run("zcat", f"/usr/share/man/man1/tollgate-{command}.1.gz")
                self.assertIn(".SH NAME", page)
        self.assertFalse((pages / "tollgate-man.1.gz").exists(), "a command for packages alone")
        bash = (
            "source /usr/share/bash-completion/completions/tollgate; COMP_WORDS=(tollgate se) COMP_CWORD=1;"
            "_tollgate tollgate se tollgate; echo ${COMPREPLY[@]}"
        )
        self.assertEqual(self.root.run("bash", "-euc", bash).split(), ["serve"])
        for path in ("zsh/vendor-completions/_tollgate", "fish/vendor_completions.d/tollgate.fish"):
            self.assertIn("serve", self.root.file(f"/usr/share/{path}").read_text())

    def test_no_call_fails_while_the_package_is_replaced(self):
        self.configure()
        gateway = self.start()
        self.seller.open_account()
        self.seller.sell()
        load = Load(self.seller)
        try:
            load.goes_on()
            next_package = package("next")
            shutil.copy(next_package, self.root.path / "root")
            self.root.run("dpkg", "--install", f"/root/{next_package.name}")
            load.goes_on()
            self.assertIsNone(gateway.poll(), "the installation ended the gateway")
            self.assertTrue(self.root.run("dpkg-query", "-Wf", "${Version}", "tollgate").endswith("+next"))
            successor = self.start("--upgrade")
            self.assertEqual(ended(gateway), 0)
            load.goes_on()
        finally:
            load.end()
        self.assertEqual((load.failed, load.refused, load.reset), ([], 0, 0), gateway.log.read_text()[-2000:])
        charges = self.seller.settled(load.answered)
        self.assertEqual(len(charges), len(load.answered) + 1)
        self.assertEqual(set(charges.values()), {CHARGE})
        self.assertEqual(stop(successor), 0)
        self.tollgate("check", "--books")
        account = json.loads(self.tollgate("--json", "account", "show", ACCOUNT))
        self.assertEqual((account["held_nano"], account["posted_nano"]), (0, CHARGE * len(charges)))
        print(f"\n  {len(load.answered)} calls answered while the package was replaced, none failed or refused")

    def test_its_boards_show_a_sale_and_its_alerts_a_vendor_that_is_cut(self):
        self.sim = own_sim(self.addCleanup)
        self.configure()
        self.start()
        self.seller.open_account()
        watch(self.seller, self.root.file("/usr/share/tollgate"), self.sim)

    def test_local_rules_set_the_price_and_outlive_the_package(self):
        self.configure()
        rules, local = "/usr/share/tollgate/rules/vendor_b.toml", "/etc/tollgate/rules/vendor_b.toml"
        listed = '"lmb-5.5"       = { input = 5,    output = 30,'
        shutil.copy(self.root.file(rules), self.root.file(local))
        self.root.edit(local, (listed, listed.replace("30,", "31,")))
        self.assertIn(f"local     {local}\n", self.tollgate("check"))
        gateway = self.start()
        self.seller.open_account()
        sold = self.seller.call()
        dearer = CHARGE + 10 * 1_000
        self.assertEqual(self.seller.settled([sold.id])[sold.id], dearer)
        # The next version of the package has another price, and is not asked.
        shutil.copy(package("next"), self.root.path / "root")
        self.root.run("dpkg", "--install", f"/root/{package('next').name}")
        self.assertIn(listed, self.root.file(rules).read_text())
        sold = self.seller.call()
        self.assertEqual(self.seller.settled([sold.id])[sold.id], dearer)
        self.assertEqual(stop(gateway), 0)
        # A mistake is told with the file that has it.
        self.root.edit(local, (listed.replace("30,", "31,"), listed.replace("output = 30,", "outptu = 31,")))
        told = self.tollgate("check", fails=True)
        self.assertRegex(told, rf"{local}:\d+: unknown key 'outptu'")
        self.assertNotIn(rules, told)

    def test_a_purge_keeps_the_ledger_unless_it_is_told_otherwise(self):
        self.configure()
        gateway = self.start()
        self.seller.open_account()
        sold = self.seller.sell()
        self.assertEqual(stop(gateway), 0)
        self.root.run("dpkg", "--remove", "tollgate")
        self.assertTrue(self.root.file(CONF).exists() and not self.root.file("/usr/bin/tollgate").exists())
        told = self.root.run("dpkg", "--purge", "tollgate")
        self.assertIn(f"{STATE} is kept", told)
        self.assertFalse(self.root.file("/etc/tollgate").exists())
        self.assertFalse(self.root.file("/usr/share/tollgate").exists())
        # Installed again, the account and its charge are there.
        again = self.root.run("dpkg", "--install", f"/root/{package('one').name}")
        self.assertIn("the store is there already", again)
        self.assertEqual(self.seller.charges(), {sold: CHARGE})
        self.root.run("dpkg", "--purge", "tollgate", TOLLGATE_PURGE_LEDGER="yes")
        self.assertFalse(self.root.file(STATE).exists())


if __name__ == "__main__":
    unittest.main()
