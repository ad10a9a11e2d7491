"""Other gateways beside tollgate, where `benches/peers/install` has put them below var/peers.

Each has one worker, its own defaults and a key check, if it has any; none of them bills. What is
set beyond that takes work off them rather than adding any, and is said in `about`, which is printed.
"""

import hashlib
import json
import os
import shutil
import sys
import tomllib

from processes import FOLDER, ROOT, free_port, listening, start, until
from variants import Variant

LISTS = ROOT / "benches" / "peers"
HOME = ROOT / "var" / "peers"
# Peers know the format of a vendor by the vendor's name, which stands in one file of ours.
VENDORS = tomllib.loads((ROOT / "conf" / "live.toml").read_text())["vendor"]
# Imports alone take LiteLLM many seconds.
START_SECONDS_MAX = 180


def installed():
    """The names of the peers that are there, whole and as listed."""
    lists = {"litellm": ["requirements.txt"], "portkey": ["package.json", "package-lock.json"]}
    return [name for name, files in lists.items() if stamp(name) == sum_of(files)]


def stamp(name):
    file = HOME / name / "stamp"
    return file.read_text().split()[0] if file.exists() else None


def sum_of(files):
    return hashlib.sha256(b"".join((LISTS / file).read_bytes() for file in files)).hexdigest()


def vendor(kind):
    """The name of the vendor whose format a kind of scenario needs in the end."""
    return VENDORS[{"chat": "vendor_b", "translated": "vendor_a"}[kind]]["routes"][0]["name"]


def run(name, command, env, port):
    """Starts a peer that knows nothing of this machine but what it is told."""
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8", **env}
    words = ["env", "-i", *(f"{key}={value}" for key, value in env.items()), *command]
    process = start(name, words, cwd=folder)

    def ready():
        if process.poll() is not None:
            sys.exit(f"failed: {name} ended at once; see {FOLDER}/{name}.log")
        return listening(port)

    until(f"{name} listens", ready, START_SECONDS_MAX)
    return process


def litellm(sim_port):
    port, key, folder = free_port(), "sk-bench", FOLDER / "litellm"
    folder.mkdir()
    base = f"http://127.0.0.1:{sim_port}"

    def model(name, kind, url):
        params = {"model": f"{vendor(kind)}/{name}", "api_base": url, "api_key": "vk-simulator"}
        return {"model_name": name, "litellm_params": params}

    # It puts /v1/messages behind the address of a vendor of messages by itself.
    models = [
        model("lmb-5.5", "chat", f"{base}/vendor_b/fast/v1"),
        model("lma-sonnet-4-6", "translated", f"{base}/vendor_a/fast"),
    ]
    conf = folder / "config.yaml"  # every JSON is YAML
    conf.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key}}, indent=2))
    program = HOME / "litellm" / "bin" / "litellm"
    command = [program, "--config", conf, "--host", "127.0.0.1", "--port", port, "--num_workers", 1]
    env = {
        # As its guide to production has it; neither does anybody else here write a line per request.
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        # Otherwise it would ask the network for prices.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # It ends a stream that says the same a hundred times, as the simulator's does.
        "REPEATED_STREAMING_CHUNK_LIMIT": 1_000_000_000,
    }
    process = run("litellm", command, env, port)
    (package,) = (HOME / "litellm").glob("lib/python*/site-packages/litellm-*.dist-info")
    version = package.name.removeprefix("litellm-").removesuffix(".dist-info")
    about = (
        f"LiteLLM's proxy {version} from PyPI: production mode, one worker, no end to streams that repeat themselves; "
        "its master key is the key check; its billing is off, as it has no database"
    )
    return Variant("litellm", port, process, key=key, about=about)


def portkey(sim_port):
    port, modules = free_port(), HOME / "portkey" / "node_modules"
    package = modules / "@portkey-ai" / "gateway"
    command = [shutil.which("node"), "--import", LISTS / "loopback.mjs"]
    command += [package / "build" / "start-server.js", f"--port={port}", "--headless"]
    process = run("portkey", command, {"NODE_ENV": "production"}, port)
    base = f"http://127.0.0.1:{sim_port}"
    headers = {
        kind: {"x-portkey-provider": vendor(kind), "x-portkey-custom-host": f"{base}/{path}/fast/v1"}
        for kind, path in [("chat", "vendor_b"), ("translated", "vendor_a")]
    }
    version, server = (
        json.loads((folder / "package.json").read_text())["version"]
        for folder in (package, modules / "@hono" / "node-server")
    )
    about = (
        f"Portkey's gateway {version} from npm, with @hono/node-server {server}: one process, without its console; "
        "NO key check, as the open-source gateway has none (what could ask for a key is a part of the client's own "
        "request); it has no billing that could be on"
    )
    return Variant("portkey", port, process, key="vk-simulator", headers=headers, about=about)


ALL = {"litellm": litellm, "portkey": portkey}
