"""A simulator, a store and one gateway or two, set up to be tormented."""

import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from allotments import AS_IS, HoldCount, settings
from children import Gateway, Redis, Sim, many_files
from processes import REPO, VERSION_SEGMENT
from rates import rules_with

# Commands at a time.
AT_ONCE = 24


class Fleet:
    """Simulator, store and gateways in a folder of their own. Use it in a `with`."""

    def __init__(
        self,
        store,
        nodes=1,
        faults=None,
        conf=None,
        name="soak",
        redis=None,
        servers=Redis,
        way=AS_IS,
        plans=None,
    ):
        many_files()
        self.folder = Path(tempfile.mkdtemp(prefix=f"tollgate-{name}-"))
        self.rules = rules_with(plans, self.folder) if plans else f"{REPO}/lua-free-rules"
        self.keep = False
        self.gateways = []
        self.holds = HoldCount(self.gateways, way)
        self.holds.start()
        self.sim = Sim(self.folder).start()
        self.redis = servers(self.folder, **(redis or {})) if store == "redis" else None
        try:
            self.redis and self.redis.start()
        except BaseException:
            self.__exit__(RuntimeError)
            raise
        self.store_url = self.redis.url if self.redis else f"sqlite:{self.folder}/tollgate.db"
        faults = faults or {}
        self.vendors = {
            vendor: [self.sim.base_url(vendor, one) for one in listed(faults.get(vendor, ""))]
            for vendor in VERSION_SEGMENT
        }
        self.conf = joined(conf or {}, settings(way))
        for _ in range(nodes):
            self.node()
        for gateway in self.gateways:
            gateway.start(wait=False)
        for gateway in self.gateways:
            gateway.wait_ready()

    def node(self, environment=None, prefix=(), store_url=None, vendors=None, binary=None, **more):
        """One more gateway, not started."""
        number = len(self.gateways)
        sections = {
            "store": {"url": store_url or self.store_url, "outbox": f"{self.folder}/outbox{number}"},
            "files": {"url": f"file:{self.folder}/files"},
            "rules": {"dir": str(self.rules)},
        }
        sections = joined(joined(sections, self.conf), more)
        vendors = vendors or self.vendors
        self.gateways.append(Gateway(self.folder, number, sections, vendors, environment, prefix, binary))
        return self.gateways[-1]

    def cli(self, *arguments, node=0, seconds=120):
        """What a command of the gateway prints; an error when it fails."""
        done = self.try_cli(*arguments, node=node, seconds=seconds)
        if done.returncode:
            raise RuntimeError(f"tollgate {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def try_cli(self, *arguments, node=0, seconds=120):
        gateway = self.gateways[node]
        command = [str(part) for part in (gateway.binary, "--conf", gateway.conf, *arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=self.folder, env=gateway.environment
        )

    def account(self, name, credit, node=0, budgets=None, plan=None):
        """A new account with this credit, these budgets (its own, its key's) and this plan; its
        key.
        """
        budgets = budgets or {}
        self.cli("account", "create", name, "--credit", credit, node=node)
        own = budget_options(budgets.get("account", {})) + (["--plan", plan] if plan else [])
        if own:
            self.cli("account", "set", name, *own, node=node)
        return self.cli("key", "issue", name, *budget_options(budgets.get("key", {})), node=node)

    def accounts(self, credits, node=0, budgets=None, plans=None):
        """The keys of new accounts, by their names, each with so much credit in nano-USD and some
        with budgets or plans. All at once: a payment is taken only when it will survive, for which
        a shared store may need a second or two.
        """
        budgets, plans = budgets or {}, plans or {}

        def make(name):
            return self.account(name, usd(credits[name]), node, budgets.get(name), plans.get(name))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(credits, pool.map(make, credits), strict=True))

    def cli_at_once(self, commands):
        """What some commands print that need not wait for each other."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda words: self.cli(*words), commands))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.holds.over.set()
        for gateway in self.gateways:
            gateway.resume()
            gateway.kill()
        for process in (self.redis, self.sim):
            if process:
                process.resume()
                process.kill()
        if self.redis:
            self.redis.watching = None
        if kind is None and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"kept for a look: {self.folder}", flush=True)


def joined(sections, more):
    """Sections of a configuration with the keys of others."""
    return sections | {name: sections.get(name, {}) | values for name, values in more.items()}


def usd(nano):
    """An amount as the command line takes it."""
    return f"{nano // 10**9}.{nano % 10**9:09}"


def budget_options(limits):
    """Limits in nano-USD by window, as the command line takes them."""
    given = (("--budget", f"{window}={usd(nano)}") for window, nano in limits.items())
    return [word for pair in given for word in pair]


def listed(value):
    return [value] if isinstance(value, str) else value
