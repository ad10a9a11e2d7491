"""Forces the allotments of busy accounts on or off, or leaves them as the load of a machine has it; and
checks, by the metrics of the gateways, that this is what happened.

Off is a setting. On is a load that keeps few accounts busy: at least a share of all charges must then
have been held in memory.
"""

import http.client
import threading

AS_IS, ON, OFF = "as-is", "on", "off"
WAYS = (AS_IS, ON, OFF)
SAMPLE_EVERY_S = 0.25
# Calls whose holds were made in memory and that were charged; and messages to the store about them.
ENDS, UPDATES = "tollgate_allotment_ends_total", "tollgate_allotment_updates_total"


def settings(way):
    """The sections of a configuration that a way needs."""
    return {"store": {"allotments": False}} if way == OFF else {}


class HoldCount(threading.Thread):
    """Counts what gateways hold in memory. They count from 0 again whenever they were killed, so they
    are asked a few times a second; what one counts in the moments before its death is not seen.
    """

    def __init__(self, gateways, way):
        super().__init__(daemon=True)
        self.gateways, self.way = gateways, way
        self.latest, self.over = {}, threading.Event()

    def run(self):
        while not self.over.wait(SAMPLE_EVERY_S):
            self.look()

    def look(self):
        for gateway in list(self.gateways):
            life = gateway.name, gateway.starts
            if not gateway.alive() or gateway.paused:
                continue
            try:
                text = gateway.page("/metrics")[1]
            except (OSError, http.client.HTTPException):
                continue
            if life == (gateway.name, gateway.starts):
                self.latest[life] = [total(text, name) for name in (ENDS, UPDATES)]

    def sums(self):
        """Ends and updates, of all lives of all gateways."""
        self.look()
        return [int(sum(counts)) for counts in zip(*self.latest.values(), strict=True)] or [0, 0]


class Shares:
    """What several fleets held in memory, of all that they charged."""

    def __init__(self, way):
        self.way, self.ends, self.updates, self.charges = way, 0, 0, 0

    def add(self, fleet, charges):
        """Of a fleet that has come to rest; the share in words."""
        ends, updates = fleet.holds.sums()
        # Ends that a store has lost are told, and counted, again.
        self.ends += min(ends, charges)
        self.updates += updates
        self.charges += charges
        return f"{ends} of {charges} charges were held in memory"

    def judge(self, found, least):
        """`least` is the share that must have been held in memory where that is forced."""
        told = f"{self.ends} of {self.charges} charges, {self.updates} updates"
        found.figure(f"held in memory (allotments {self.way})", told)
        if self.way == ON:
            found.check(self.ends >= least * self.charges, f"less than {least:.0%} was held in memory", told)
        elif self.way == OFF:
            found.check(not self.ends + self.updates, "something was held in memory", told)


def judge(fleet, found, charges, least):
    """The same of one fleet."""
    shares = Shares(fleet.holds.way)
    shares.add(fleet, charges)
    shares.judge(found, least)


def total(text, name):
    """The sum of a metric on a page."""
    lines = (line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
