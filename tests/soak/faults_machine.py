"""Faults of the machine: disks full, clocks wrong, names unknown, descriptors used up, processes paused."""

import contextlib
import shutil
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import calls
from allotments import OFF, ON
from children import HOST, until
from faults import LEASE_MS, rows_of
from faults_store import back_in_time, wait_for_recovery
from traffic import Seen, tell

ROWS, row = rows_of()
DAY_S = 86_400
# The addresses of routes are looked up again so often.
RESOLVE_EVERY_S = 30
# The shortest that a configuration may have.
SHORT_LEASE_MS = 1_000
# How many times at most a process is paused again because it was in the middle of a write of SQLite.
PAUSES_MAX = 50


@contextlib.contextmanager
def small_disk(folder, mebibytes):
    """A file system of so many MiB, if this machine lets us make one."""
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tollgate-soak", folder], capture_output=True
    )
    try:
        yield made.returncode == 0
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=False)


def fill(folder):
    """Takes all the room there is; what to delete to give it back."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(1 << 16))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as out:
        while True:
            out.write(bytes(512))
    return filler


def disk_full(bench, fleet, folder, seconds, refuses=True):
    """Traffic before, while and after a disk is full."""
    traffic = bench.traffic(fleet)
    traffic.phase = "during"
    filler = fill(folder)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(0.2)
        # What was given back in between is taken again.
        fill_more(filler)
    traffic.phase = "after"
    filler.unlink()
    healed = time.monotonic()
    wait_for_recovery(bench, traffic, healed)
    traffic.stop()
    bench.did(f"for {seconds:g} s: {traffic.summary('during')}")
    recovery = traffic.recovery(healed)
    bench.did(f"back {recovery:.2f} s after there was room")
    worse = [
        seen.said()
        for seen in traffic.seen
        if seen.told.outcome not in ("whole", "refused") or seen.told.status[:3] not in ("200", "503")
    ]
    bench.check(not worse, "worse than 503", worse[:5])
    refused = [seen for seen in traffic.seen if seen.phase == "during" and seen.told.outcome == "refused"]
    bench.check(refused or not refuses, "nothing was refused, so the disk was not full")
    back_in_time(bench, recovery)
    bench.check(all(g.alive() and g.starts == 1 for g in fleet.gateways), "a gateway ended")
    bench.money(fleet, traffic.told())


def fill_more(filler):
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as out:
        while True:
            out.write(bytes(512))


FULL = "new calls 503, streams under way end well and are charged when there is room, back within 3 s, money exact"


@row("disk full under SQLite", FULL)
def sqlite_full(bench):
    with bench.fleet("sqlite", 1) as fleet:
        gateway = fleet.gateways[0]
        gateway.kill()
        with small_disk(fleet.folder / "small", 24) as made:
            if not made:
                return bench.did("not made: no permission to mount")
            gateway.sections["store"]["url"] = f"sqlite:{fleet.folder}/small/tollgate.db"
            gateway.write()
            gateway.starts = 0
            gateway.start()
            try:
                disk_full(bench, fleet, fleet.folder / "small", bench.seconds(4, 20))
            finally:
                gateway.kill()


@row(
    "disk full under the outbox",
    "new calls 503, what is under way is charged, back within 3 s, money exact",
    short=False,
)
def outbox_full(bench):
    with bench.fleet("redis", 0) as fleet, contextlib.ExitStack() as disks:
        for number in range(2):
            folder = fleet.folder / f"disk{number}"
            if not disks.enter_context(small_disk(folder, 4)):
                return bench.did("not made: no permission to mount")
            node = fleet.node(store={"outbox": f"{folder}/outbox"})
            node.start()
        try:
            disk_full(bench, fleet, fleet.folder / "disk0", bench.seconds(4, 20))
        finally:
            for gateway in fleet.gateways:
                gateway.stop()


@row("disk full under Redis", FULL, short=False)
def redis_full(bench):
    with bench.fleet() as fleet, small_disk(fleet.folder / "small", 24) as made:
        if not made:
            return bench.did("not made: no permission to mount")
        fleet.redis.kill()
        shutil.copytree(fleet.redis.data, fleet.folder / "small" / "data")
        fleet.redis.command[fleet.redis.command.index("--dir") + 1] = f"{fleet.folder}/small/data"
        fleet.redis.start()
        for gateway in fleet.gateways:
            until(gateway.ready, "ready again", 20)
        try:
            disk_full(bench, fleet, fleet.folder / "small", bench.seconds(4, 20))
        finally:
            fleet.redis.kill()


def clock(folder):
    """A clock for a process, and the file that sets it forward or back; none without a compiler."""
    library, setting = folder / "clock.so", folder / "clock"
    compiler = shutil.which("cc")
    source = Path(__file__).parent / "clock.c"
    if not compiler or subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source]).returncode:
        return None, {}
    setting.write_bytes(struct.pack("=q", 0))
    return setting, {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(setting)}


def shifted(bench, fleet, setting, jumps):
    """Traffic while a clock jumps."""
    traffic = bench.traffic(fleet)
    for jump in jumps:
        with setting.open("r+b", buffering=0) as out:
            out.write(struct.pack("=q", jump))
        traffic.phase = f"{jump / DAY_S:+g} d"
        time.sleep(bench.seconds(3, 12))
    time.sleep(2)
    traffic.stop()
    for jump in jumps:
        phase = f"{jump / DAY_S:+g} d"
        bench.did(f"{phase}: {traffic.summary(phase)}")
    bad = [seen.said() for seen in traffic.seen if seen.told.outcome != "whole"]
    bench.check(len(bad) <= len(traffic.seen) // 50, "calls were refused", bad[:5])
    books = bench.money(fleet, traffic.told())
    times = [charge["at"] for charges in books.charges.values() for charge in charges]
    return (max(times) - min(times)) / 1000


CLOCK = "nobody notices: holds live by the store's own clock or a monotonic one, money exact"


@row("clock of the gateway jumps a day, on and back (SQLite)", CLOCK, short=False)
def clock_sqlite(bench):
    with bench.fleet("sqlite", 0) as fleet:
        setting, environment = clock(fleet.folder)
        if not setting:
            return bench.did("not made: no compiler for the clock")
        fleet.node(environment).start()
        span = shifted(bench, fleet, setting, [DAY_S, 0, -DAY_S, 0])
        bench.check(span > DAY_S, "the clock did not jump", span)


@row("clock of one of two gateways a day off (Redis)", CLOCK, short=False)
def clock_redis(bench):
    with bench.fleet("redis", 1) as fleet:
        setting, environment = clock(fleet.folder)
        if not setting:
            return bench.did("not made: no compiler for the clock")
        fleet.node(environment).start()
        span = shifted(bench, fleet, setting, [DAY_S, -DAY_S])
        bench.check(span > DAY_S, "the clock did not jump", span)


@row(
    "clock of Redis jumps a day, on and back", "holds under way may expire; every whole answer is charged", short=False
)
def clock_of_redis(bench):
    with bench.fleet() as fleet:
        setting, environment = clock(fleet.folder)
        if not setting:
            return bench.did("not made: no compiler for the clock")
        fleet.redis.stop()
        fleet.redis.environment |= environment
        fleet.redis.start()
        for gateway in fleet.gateways:
            until(gateway.ready, "ready again", 20)
        shifted(bench, fleet, setting, [DAY_S, 0])
        with setting.open("r+b", buffering=0) as out:
            out.write(struct.pack("=q", DAY_S))
        told = fleet.redis.ask_all("TIME")
        bench.check(abs(int(told[0]) - time.time() - DAY_S) < 60, "the clock did not jump", told)


@row(
    "DNS gone",
    "addresses that were found stay in use; a name that never was is passed over, its vendor 503",
    short=False,
)
def names(bench):
    with bench.fleet("sqlite", 0) as fleet:
        hosts, resolv, switch = (fleet.folder / name for name in ("hosts", "resolv.conf", "nsswitch.conf"))
        hosts.write_text(f"{HOST} localhost vendor.soak\n")
        # Nobody listens there.
        resolv.write_text("nameserver 127.0.0.253\noptions timeout:1 attempts:1\n")
        switch.write_text("hosts: files dns\n")
        mounts = " && ".join(
            f"mount --bind {file} /etc/{file.name}"
            for file in (hosts, resolv, switch)
            if Path(f"/etc/{file.name}").exists()
        )
        prefix = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
        if subprocess.run([*prefix, "true"], capture_output=True).returncode:
            return bench.did("not made: no permission for mounts of a process' own")
        named = {vendor: [url.replace(HOST, "vendor.soak") for url in urls] for vendor, urls in fleet.vendors.items()}
        named["vendor_b"].insert(0, named["vendor_b"][0].replace("vendor.soak", "never.soak"))
        named["vendor_d"] = [named["vendor_d"][0].replace("vendor.soak", "never.soak")]
        fleet.node(prefix=prefix, vendors=named)
        fleet.gateways[0].start()
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        hosts.write_text("")
        seconds = RESOLVE_EVERY_S + 10
        name, key = traffic.accounts[0]
        lone = calls.Kind("lone", calls.CHAT, "lmd-4.3", calls.chat)
        time.sleep(seconds)
        reply, took = calls.one(fleet.gateways[0].http, lone, 2, key)
        traffic.note(Seen("lone", 0, took, 0, tell(reply, lone, 2, name, took)))
        traffic.stop()
        bench.did(f"for {seconds} s without names: {traffic.summary('during')}")
        bench.did(f"vendor whose only name is unknown: {reply.status} {reply.code()} in {took * 1000:.0f} ms")
        bad = [s.said() for s in traffic.seen if s.told.outcome != "whole" and s.phase != "lone"]
        bench.check(not bad, "refused though the addresses were known", bad[:5])
        bench.check(reply.status == 503, "not 503", reply.status)
        bench.money(fleet, traffic.told())


@row(
    "file descriptors used up (64 in all)",
    "no crash; what fits is served, the rest waits or is refused; back within 10 s",
    short=False,
)
def descriptors(bench):
    with bench.fleet("sqlite", 0) as fleet:
        fleet.node(prefix=["prlimit", "--nofile=64:64"]).start()
        gateway = fleet.gateways[0]
        traffic = bench.traffic(fleet, threads=4)
        traffic.phase = "during"
        idle = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection((HOST, gateway.http), timeout=1))
        time.sleep(bench.seconds(4, 15))
        traffic.phase = "after"
        for line in idle:
            line.close()
        healed = time.monotonic()
        time.sleep(12)
        traffic.stop()
        bench.did(f"200 idle connections: {traffic.summary('during')}")
        recovery = traffic.recovery(healed)
        bench.did(f"back {recovery:.2f} s after they closed")
        bench.check(gateway.alive() and gateway.starts == 1, "the gateway ended", gateway.tail())
        # After each connection that it could not take the listener rests for a second.
        bench.check(recovery < 10, "not back in time", recovery)
        told = [call for call in traffic.told() if call.outcome != "hung"]
        bench.money(fleet, told)


@row(
    "gateway paused (SIGSTOP) for three leases, while another sweeps",
    "its holds expire; it wakes, ends its answers, each is charged once and exactly",
    short=False,
)
def stopped(bench):
    with bench.fleet() as fleet:
        traffic = bench.traffic(fleet)
        streams = background_streams(fleet, traffic, 12)
        time.sleep(1)
        traffic.phase = "during"
        fleet.gateways[0].pause()
        time.sleep(3 * LEASE_MS / 1000 + bench.seconds(0, 4))
        fleet.gateways[0].resume()
        traffic.phase = "after"
        time.sleep(4)
        traffic.stop()
        for stream in streams:
            stream.join(20)
        swept = sum(gateway.tail(100_000).count("expired holds released") for gateway in fleet.gateways)
        bench.did(f"{swept} sweeps found something; {traffic.summary('during')}")
        bench.did(f"streams begun before: {traffic.summary('stream')}")
        bench.check(swept > 0, "nothing expired, so it was not made")
        bench.money(fleet, traffic.told())


BUSY_PAUSED = "its allotment expires; it wakes, tells its ends late; each answer is charged once and exactly"


@row("gateway with a busy account paused for three leases, while another serves it (Redis)", BUSY_PAUSED)
def busy_stopped_redis(bench):
    busy_stopped(bench, "redis")


@row("gateway with a busy account paused for three leases, while another serves it (SQLite)", BUSY_PAUSED)
def busy_stopped_sqlite(bench):
    busy_stopped(bench, "sqlite")


def busy_stopped(bench, store):
    """Streams and short calls of one account, whose holds are in the memory of the gateway that is paused."""
    way = OFF if bench.shares.way == OFF else ON
    with bench.fleet(store, conf=bench.timeouts(lease_ms=SHORT_LEASE_MS), way=way) as fleet:
        paused, other = fleet.gateways
        traffic = bench.traffic(fleet, threads=24, **({"pause": 0.002} if way == OFF else {}))
        streams = background_streams(fleet, traffic, 6)
        time.sleep(0.5)
        until(lambda: way == OFF or paused.metric("tollgate_allotments"), "something is borrowed", 5)
        traffic.phase, traffic.only = "during", [other]
        pause_beside(paused, other, traffic.accounts[0][1])
        open_calls = traffic.under_way(paused.http)
        time.sleep(3 * SHORT_LEASE_MS / 1000 + bench.seconds(0, 4))
        swept = other.said("expired holds released")
        paused.resume()
        traffic.phase, traffic.only = "after", []
        time.sleep(bench.seconds(1.5, 4))
        traffic.stop()
        for stream in streams:
            stream.join(20)
        bench.did(f"{open_calls} calls of the traffic and {len(streams)} streams were under way when it was paused")
        bench.did(f"the other served meanwhile: {traffic.summary('during')}; streams: {traffic.summary('stream')}")
        bench.check(swept, "nothing expired, so it was not made")
        bench.check(open_calls, "no call was under way, so it was not made")
        served = [s for s in traffic.seen if s.phase == "during" and s.port == other.http and s.told.outcome == "whole"]
        bench.check(served, "the other did not serve the account")
        cut = [s.said() for s in traffic.seen if s.phase == "stream" and s.told.outcome != "whole"]
        bench.check(not cut, "streams were cut", cut)
        bench.money(fleet, traffic.told())


def pause_beside(paused, other, key):
    """Pauses a gateway, at a moment when it has no lock of SQLite, which would keep the other from its work:
    that does a call with a key, whose hold is never made in memory.
    """
    for number in range(PAUSES_MAX):
        paused.pause()
        reply, _ = calls.one(other.http, calls.KINDS["embedding"], 1, key, idempotency=f"pause{number}")
        if reply.status == 200:
            return
        paused.resume()
        time.sleep(0.05)
    raise TimeoutError("never paused outside of a write")


@row(
    "gateway killed (kill -9) with streams under way",
    "its holds end within two leases; what was delivered is charged at least to 5 s before",
    short=False,
)
def killed(bench):
    with bench.fleet(faults={"vendor_c": "chunk-delay=100;chunks=200"}) as fleet:
        traffic = bench.traffic(fleet, mix=(("speech", 1), ("chat", 1)))
        before = fleet.sim.count("vendor_c")
        streams = background_streams(fleet, traffic, 12)
        time.sleep(8)
        fleet.gateways[0].kill()
        died = time.monotonic()
        fleet.gateways[0].start()
        traffic.phase = "after"
        time.sleep(15)
        traffic.stop()
        for stream in streams:
            stream.join(20)
        bench.did(
            f"{fleet.sim.count('vendor_c') - before} streams of 20 s, killed after 8: {traffic.summary('stream')}"
        )
        books = bench.money(fleet, traffic.told())
        charges = [c for charges in books.charges.values() for c in charges if c["vendor"] == "vendor_c"]
        tokens = sorted(charge["usage"]["completion_tokens"] for charge in charges)
        even = time.monotonic() - died
        bench.did(f"{len(charges)} of them charged, with {tokens} tokens of 200; books even {even:.0f} s later")
        bench.check(len(charges) == 12, "streams that were delivered in part are not charged", len(charges))
        bench.check(all(count >= 20 for count in tokens), "less was charged than was delivered 5 s before", tokens)


def background_streams(fleet, traffic, count):
    """Slow streams on the first gateway, each on a thread of its own."""
    slow, port = calls.KINDS["slow stream"], fleet.gateways[0].http
    slow = calls.Kind(slow.name, slow.path, slow.model, lambda t: calls.streamed(t) | {"max_tokens": 300}, end=slow.end)

    def stream(number):
        name, key = traffic.accounts[number % len(traffic.accounts)]
        began = time.monotonic()
        reply, took = calls.one(port, slow, number + 1, key, 40)
        traffic.note(Seen("stream", began, took, port, tell(reply, slow, number + 1, name, took, 40)))

    threads = [threading.Thread(target=stream, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads
