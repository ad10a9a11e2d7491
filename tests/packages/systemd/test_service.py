"""The unit of packaging/systemd under a real systemd: it starts, reloads, is watched, is replaced
under load, and stops. SUITE names the Debian release whose systemd runs."""

import os
import re
import time
import unittest

from inside import REPO, UNIT, Caller, Machine

SUITE = os.environ.get("SUITE", "trixie")
TOLLGATE = os.environ.get("TOLLGATE_BIN", str(REPO / "target/debug/tollgate"))
SIM = os.environ.get("TOLLGATE_SIM", str(REPO / "target/debug/examples/sim"))
RULES = "/usr/share/tollgate/rules/vendor_b.toml"
SERVES = "2 of 2 routes up, 0 requests running"


class Service(unittest.TestCase):
    """Each test finds the service stopped, and leaves it so."""

    @classmethod
    def setUpClass(cls):
        cls.machine = Machine(SUITE, TOLLGATE, SIM)
        cls.addClassCleanup(cls.machine.close)

    def setUp(self):
        self.machine.run("systemctl", "start", UNIT)

    def tearDown(self):
        self.machine.run("systemctl", "stop", UNIT)

    def told(self, text, patience=30):
        """Waits until systemd shows this status."""
        self.machine.wait(lambda: text in self.machine.shown("StatusText"), text, patience)

    def in_state(self, state, sub):
        shown = (self.machine.shown("ActiveState"), self.machine.shown("SubState"))
        self.assertEqual(shown, (state, sub), self.machine.told())

    def test_start_is_over_when_the_gateway_serves(self):
        self.in_state("active", "running")
        self.assertEqual(self.machine.shown("StatusText"), SERVES)
        self.assertEqual(Caller(self.machine, anew=True).stop(), 1)

    def test_start_takes_as_long_as_the_gateway_cannot_sell(self):
        self.machine.run("systemctl", "stop", UNIT)
        conf = "/run/systemd/system/tollgate.service.d/nowhere.conf"
        vendor = "TOLLGATE__VENDOR__VENDOR_%s__ROUTES"
        route = '[{ name = "main", base_url = "http://nowhere.invalid/v1", key = "k" }]'
        lines = [f"Environment='{vendor % name}={route}'" for name in "BC"]
        self.machine.run("mkdir", "-p", os.path.dirname(conf))
        self.machine.run("sh", "-c", 'printf "[Service]\n%s\n%s\n" "$1" "$2" >"$3"', "sh", *lines, conf)
        self.machine.run("systemctl", "daemon-reload")
        try:
            self.machine.run("systemctl", "start", "--no-block", UNIT)
            self.told("not ready: no address of a vendor is known")
            self.in_state("activating", "start")
        finally:
            self.machine.run("rm", conf)
            self.machine.run("systemctl", "daemon-reload")

    def test_credentials_are_the_keys_of_the_vendors(self):
        """Both vendors have routes, so both keys were read; nobody else may read them."""
        self.assertEqual(self.machine.shown("StatusText"), SERVES)
        folder = f"/run/credentials/{UNIT}"
        listed = self.machine.run("ls", folder)
        self.assertEqual(listed.split(), ["tollgate.vendor_b", "vendor_c"])
        refused = self.machine.run("runuser", "-u", "nobody", "--", "cat", f"{folder}/vendor_c",
                                   check=False)
        self.assertIn("Permission denied", refused)

    def test_reload_takes_new_rules_and_keeps_the_old_ones_if_they_are_refused(self):
        def count(words):
            return self.machine.journal().count(words)

        reloaded, refused = count("rules reloaded"), count("rules not reloaded")
        self.machine.run("cp", RULES, "/root/rules.toml")
        self.machine.run("systemctl", "reload", UNIT)
        self.in_state("active", "running")
        self.assertEqual(count("rules reloaded"), reloaded + 1, "the reload is over when it is")
        try:
            self.machine.run("sh", "-c", f"echo '[chat' >>{RULES}")
            self.machine.run("systemctl", "reload", UNIT)
            self.in_state("active", "running")
            self.assertIn("reload refused, the old settings stay", self.machine.shown("StatusText"))
            self.assertGreater(count("rules not reloaded"), refused)
            self.assertGreaterEqual(Caller(self.machine, anew=True).stop(), 1)
        finally:
            self.machine.run("cp", "/root/rules.toml", RULES)
        self.machine.run("systemctl", "reload", UNIT)
        self.assertEqual(self.machine.shown("StatusText"), SERVES)
        self.assertEqual(self.machine.shown("NRestarts"), "0")

    def test_what_hangs_is_started_anew(self):
        old = self.machine.shown("MainPID")
        # Longer than the watchdog: a gateway that turns is left alone.
        time.sleep(6)
        self.assertEqual(self.machine.shown("MainPID"), old)
        self.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", UNIT)
        self.machine.wait(lambda: self.machine.shown("Result") == "watchdog", "a watchdog")
        self.machine.wait(lambda: self.machine.shown("NRestarts") == "1", "a restart")
        self.told(SERVES)
        self.assertNotEqual(self.machine.shown("MainPID"), old)

    def test_stop_waits_for_the_call_that_runs(self):
        caller = Caller(self.machine, anew=True, model="lmc-3.5-flash")
        self.assertTrue(caller.has_begun.wait(30))
        caller.stops = True
        began = time.monotonic()
        self.machine.run("systemctl", "stop", "--no-block", UNIT)
        self.told("stopping, 1 requests running")
        self.in_state("deactivating", "stop-sigterm")
        self.machine.wait(lambda: self.machine.shown("ActiveState") == "inactive", "a stop")
        self.assertEqual(caller.stop(), 1)
        self.assertLess(time.monotonic() - began, 20, "it ends with the call, not with its grace")
        self.assertEqual(self.machine.shown("Result"), "success")

    def test_upgrade_under_load_changes_the_main_process_and_fails_no_call(self):
        long = Caller(self.machine, anew=True, model="lmc-3.5-flash")
        callers = [Caller(self.machine, anew=number % 2 == 0) for number in range(6)]
        self.assertTrue(all(c.has_begun.wait(30) for c in [long, *callers]))
        for number in range(2):
            old = self.machine.shown("MainPID")
            # As a package does it: a new file in the place of the old one.
            self.machine.run("sh", "-c", "cp /usr/bin/tollgate /usr/bin/new; mv /usr/bin/new /usr/bin/tollgate")
            self.machine.run("systemctl", "start", "tollgate-upgrade.service")
            new = self.machine.shown("MainPID")
            self.assertNotEqual(new, old, self.machine.told())
            self.in_state("active", "running")
        long.stop()
        counts = [caller.stop() for caller in callers]
        self.assertTrue(all(count > 5 for count in counts), counts)
        # The old ones are gone, and the new one is watched and speaks.
        self.machine.wait(lambda: len(self.processes()) == 1, "one process")
        self.told(SERVES)
        time.sleep(6)
        self.assertEqual(self.machine.shown("MainPID"), new)
        self.assertEqual(self.machine.shown("NRestarts"), "0")
        self.assertNotIn("reception only permitted", self.machine.journal())

    def test_upgrade_that_fails_leaves_the_old_process_alone(self):
        old = self.machine.shown("MainPID")
        self.machine.run("mv", "/usr/bin/tollgate", "/usr/bin/kept")
        try:
            self.machine.run("sh", "-c", "printf '#!/bin/sh\nexit 7\n' >/usr/bin/tollgate")
            self.machine.run("chmod", "+x", "/usr/bin/tollgate")
            self.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGUSR2", UNIT)
            self.told("upgrade failed, this process stays")
            self.assertIn("the new process has ended: exit status 7", self.machine.journal())
        finally:
            self.machine.run("mv", "/usr/bin/kept", "/usr/bin/tollgate")
        self.assertEqual(self.machine.shown("MainPID"), old)
        self.machine.run("systemctl", "start", "tollgate-upgrade.service")
        self.assertNotEqual(self.machine.shown("MainPID"), old)

    def test_stop_after_an_upgrade_cuts_no_call_of_the_old_process(self):
        caller = Caller(self.machine, anew=True, model="lmc-3.5-flash")
        self.assertTrue(caller.has_begun.wait(30))
        caller.stops = True
        self.machine.run("systemctl", "start", "tollgate-upgrade.service")
        self.assertEqual(len(self.processes()), 2, "the old one has a call")
        self.machine.run("systemctl", "stop", UNIT)
        self.assertEqual(caller.stop(), 1)

    def test_new_process_that_dies_beside_the_old_one_is_started_anew(self):
        caller = Caller(self.machine, anew=True, model="lmc-3.5-flash")
        self.assertTrue(caller.has_begun.wait(30))
        caller.stops = True
        self.machine.run("systemctl", "start", "tollgate-upgrade.service")
        self.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", UNIT)
        self.machine.wait(lambda: self.machine.shown("NRestarts") == "1", "a restart", 10)
        self.told(SERVES)
        self.assertGreaterEqual(Caller(self.machine, anew=True).stop(), 1)

    def processes(self):
        """The processes of the service."""
        shown = self.machine.run("systemctl", "status", "--no-pager", "--lines=0", UNIT, check=False)
        return re.findall(r"\d+ /usr/bin/tollgate", shown.split("CGroup:")[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
