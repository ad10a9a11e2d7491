"""Redis with replicas: a cluster of three masters, or a master that three Sentinels watch."""

import subprocess
import time

from children import HOST, START_WAIT_S, Redis, free_port, until

NODE_TIMEOUT_MS = 2_000
# Nobody who uses a server is silent for so long.
IDLE_S = 2
SLOTS = ((0, 5_460), (5_461, 10_922), (10_923, 16_383))


class Replicated:
    """What both have: servers, and a fleet that takes them for one store."""

    def __init__(self, folder):
        self.folder, self.watching, self.servers = folder, None, []

    def server(self, name, **more):
        self.servers.append(Redis(self.folder, name, repl_diskless_sync_delay=0, **more))
        return self.servers[-1].start()

    def is_used_behind(self):
        """Whether anybody still uses a server that was replaced."""
        return False

    def resume(self):
        for server in self.servers:
            server.resume()

    def kill(self):
        for server in self.servers:
            server.kill()


def role(server):
    """What it is; `None` if it does not say so."""
    try:
        return info(server, "INFO", "replication").get("role")
    except subprocess.TimeoutExpired:
        return None


def said(server, *words):
    """What a server answers."""
    command = ["redis-cli", "-h", HOST, "-p", str(server.port), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout


def info(server, *words):
    """All of an INFO, by names."""
    return dict(line.strip().split(":", 1) for line in said(server, *words).splitlines() if ":" in line)


def clients(server):
    """Who uses a server, but for Sentinels, and for whoever asks here. A connection may lie idle."""
    lines = said(server, "CLIENT", "LIST", "TYPE", "normal").splitlines()
    told = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    others = [one for one in told if "sentinel" not in one["name"] and not one["cmd"].startswith("client")]
    return [one for one in others if int(one["idle"]) < IDLE_S]


class Cluster(Replicated):
    """Three masters, each with a replica."""

    def start(self):
        more = {"cluster_enabled": "yes", "cluster_node_timeout": NODE_TIMEOUT_MS}
        for number in range(6):
            # The bus of a node is at its port plus 10,000.
            self.server(f"redis{number}", **more)
        addresses = [f"{HOST}:{server.port}" for server in self.servers]
        self.cli("--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes")
        until(self.is_whole, "the cluster is whole, and every master has its replica", START_WAIT_S)
        self.url = "redis-cluster://" + ",".join(addresses[:3])
        return self

    def cli(self, *words, seconds=120):
        command = ["redis-cli", "-h", HOST, "-p", str(self.servers[0].port), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def is_whole(self):
        """Whether all agree, and each of three masters has a replica that follows."""
        alive = [server for server in self.servers if server.alive() and not server.paused]
        masters = self.masters()
        states = [info(server, "CLUSTER", "INFO").get("cluster_state") for server in alive]
        told = [info(server, "INFO", "replication") for server in masters]
        followed = [said for said in told if "state=online" in said.get("slave0", "")]
        return len(masters) == len(followed) == 3 and set(states) == {"ok"}

    def masters(self):
        """Those that are masters and have slots."""
        alive = [server for server in self.servers if server.alive() and not server.paused]
        return [server for server in alive if role(server) == "master"]

    def replica_of(self, master):
        alive = [server for server in self.servers if server.alive() and server is not master]
        port = str(master.port)
        return next(server for server in alive if info(server, "INFO", "replication").get("master_port") == port)

    def fail_over(self):
        """A master, and what has taken its place as planned."""
        master = self.masters()[0]
        replica = self.replica_of(master)

        def taken():
            replica.ask("CLUSTER", "FAILOVER")
            time.sleep(0.1)
            return role(replica) == "master"

        until(taken, "the replica takes over", START_WAIT_S)

    def lose(self, harm):
        """Does a master harm and waits until its replica has its place; the one that was harmed."""
        master = self.masters()[0]
        replica = self.replica_of(master)
        harm(master)
        until(lambda: role(replica) == "master", "the replica takes over", START_WAIT_S)
        return master

    def reshard(self, slots):
        """Moves so many slots of one master to another."""
        one, other = self.masters()[:2]
        names = [said(server, "CLUSTER", "MYID").strip() for server in (one, other)]
        self.cli(
            *("--cluster", "reshard", f"{HOST}:{one.port}", "--cluster-from", names[0], "--cluster-to", names[1]),
            *("--cluster-slots", str(slots), "--cluster-yes", "--cluster-pipeline", "100"),
        )



class Watched(Replicated):
    """A master and two replicas, which three Sentinels watch."""

    def start(self):
        for number in range(3):
            self.server(f"redis{number}")
        for replica in self.servers[1:]:
            replica.ask("REPLICAOF", HOST, self.servers[0].port)
        until(lambda: info(self.servers[0], "INFO", "replication").get("connected_slaves") == "2", "two replicas", 30)
        self.sentinels = [Sentinel(self.folder, number, self.servers[0].port).start() for number in range(3)]
        until(self.is_whole, "the Sentinels know each other and the replicas", START_WAIT_S)
        addresses = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis-sentinel://{addresses}/soak"
        return self

    def kill(self):
        for sentinel in self.sentinels:
            sentinel.kill()
        super().kill()

    def is_whole(self):
        told = [sentinel.master() for sentinel in self.sentinels]
        return all(said.get("num-other-sentinels") == "2" and said.get("num-slaves") == "2" for said in told)

    def named(self):
        """Whom the Sentinels name."""
        ports = {sentinel.master().get("port") for sentinel in self.sentinels}
        return next(server for server in self.servers if {str(server.port)} == ports) if len(ports) == 1 else None

    def is_used_behind(self):
        named = self.named()
        alive = [server for server in self.servers if server.alive() and not server.paused]
        others = [server for server in alive if server is not named and role(server) == "master"]
        return any(clients(server) for server in others)

    def fail_over(self):
        self.lose(lambda _: self.sentinels[0].ask("SENTINEL", "FAILOVER", "soak"))

    def lose(self, harm):
        master = until(self.named, "the Sentinels agree", START_WAIT_S)
        harm(master)

        def replaced():
            named = self.named()
            return named and named is not master and role(named) == "master"

        until(replaced, "another master is named", START_WAIT_S)
        return master


class Sentinel(Redis):
    """One of three, two of which decide."""

    def __init__(self, folder, number, master):
        super().__init__(folder, f"sentinel{number}")
        conf = self.data / "sentinel.conf"
        lines = [
            f"port {self.port}",
            f"sentinel monitor soak {HOST} {master} 2",
            f"sentinel down-after-milliseconds soak {NODE_TIMEOUT_MS}",
            "sentinel failover-timeout soak 5000",
        ]
        conf.write_text("\n".join(lines) + "\n")
        self.command = ["redis-server", str(conf), "--sentinel", "--dir", str(self.data)]

    def master(self):
        """What it knows of the master."""
        try:
            told = self.ask_all("SENTINEL", "MASTER", "soak")
        except (OSError, ValueError):
            return {}
        return dict(zip(told[::2], told[1::2], strict=False))
