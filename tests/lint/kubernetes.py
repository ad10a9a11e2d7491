"""What the manifests of packaging/kubernetes have to hold, asserted on what kustomize renders."""

import base64
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

try:
    import tomllib
except ImportError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

TOP = Path("packaging/kubernetes")
MARGIN_S = 10  # between the gateway's own end and the kill of the kubelet
SERVICES = {
    "tollgate": {"http"},
    "tollgate-pods": {"http"},
    "tollgate-admin": {"admin"},
    "tollgate-console": {"console"},
}
CONFIG = "/etc/tollgate/"


class Rendered:
    """The objects of one kustomization, and what is wrong with them."""

    def __init__(self, name, text):
        self.name, self.faults = name, []
        self.objects = [one for one in yaml.safe_load_all(text) if one]

    def hold(self, is_so, what):
        if not is_so:
            self.faults.append(f"{self.name}: {what}")

    def all(self, kind):
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    def one(self, kind, prefix="tollgate"):
        found = [o for name, o in self.all(kind).items() if name.startswith(prefix)]
        if len(found) != 1:
            raise SystemExit(f"{self.name}: {len(found)} {kind} {prefix}*")
        return found[0]


def pod_is_restricted(it, pod):
    context = pod.get("securityContext", {})
    it.hold(context.get("runAsNonRoot") is True, "a pod runs as somebody else than root")
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        it.hold(context.get(key) == 65532, f"{key} is 65532")
    it.hold(context.get("fsGroupChangePolicy") == "OnRootMismatch", "modes of state are left alone")
    it.hold(context.get("seccompProfile") == {"type": "RuntimeDefault"}, "seccomp is the default")
    it.hold(pod.get("automountServiceAccountToken") is False, "no token is mounted")
    it.hold(pod.get("enableServiceLinks") is False, "no variables of services")
    for shared in ("hostNetwork", "hostPID", "hostIPC"):
        it.hold(not pod.get(shared), f"no {shared}")
    for volume in pod.get("volumes", []):
        it.hold("hostPath" not in volume, f"volume {volume['name']} is not a path of the node")
    for one in pod["containers"] + pod.get("initContainers", []):
        name, context = one["name"], one.get("securityContext", {})
        it.hold(context.get("allowPrivilegeEscalation") is False, f"{name} gains no privileges")
        it.hold(context.get("readOnlyRootFilesystem") is True, f"{name} has a root to read only")
        it.hold(context.get("capabilities") == {"drop": ["ALL"]}, f"{name} drops ALL")
        it.hold(not context.get("privileged"), f"{name} is not privileged")
        it.hold("runAsUser" not in context, f"{name} runs as the user of its pod")
        resources = one.get("resources", {})
        it.hold("memory" in resources.get("limits", {}), f"{name} has a bound of memory")
        it.hold({"cpu", "memory"} <= set(resources.get("requests", {})), f"{name} asks for both")


def pods_are_probed_and_drained(it, pod, conf):
    gateway = pod["containers"][0]
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        asked = gateway.get(probe, {}).get("httpGet", {})
        it.hold((asked.get("path"), asked.get("port")) == (path, "admin"), f"{probe} asks {path}")
    pause = gateway.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    it.hold(pause >= 5, "preStop waits for the balancers")
    least = conf.get("server", {}).get("grace_s", 300) + pause + MARGIN_S
    given = pod.get("terminationGracePeriodSeconds", 30)
    it.hold(given >= least, f"terminationGracePeriodSeconds {given} is at least {least}")
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    listens = {k: int(str(v).rpartition(":")[2]) for k, v in conf["listen"].items() if k in ports}
    it.hold(set(ports) == {"http", "admin", "console"}, "three ports are named")
    it.hold(ports == listens, f"ports {ports} are those of the configuration: {listens}")
    keys = {c["topologyKey"] for c in pod.get("topologySpreadConstraints", [])}
    it.hold("kubernetes.io/hostname" in keys, "pods are spread over nodes")


def state_outlives_pods(it, sets, conf):
    pod, spec = sets["spec"]["template"]["spec"], sets["spec"]
    claims = {c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])}
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    kept = [path for path, name in mounts.items() if name in claims]
    retained = spec.get("persistentVolumeClaimRetentionPolicy", {"": "Retain"})
    it.hold(set(retained.values()) == {"Retain"}, "volumes stay when pods go")
    written = {
        "store.outbox": conf.get("store", {}).get("outbox", ""),
        "audit.to": conf.get("audit", {}).get("to", "").removeprefix("file:"),
        "server.upgrade_sock": conf.get("server", {}).get("upgrade_sock", ""),
    }
    files = conf.get("files", {}).get("url", "")
    if files.startswith("file:"):
        written["files.url"] = files.removeprefix("file:")
    for key, path in written.items():
        # Below a folder of its own: that of the volume is open to the group.
        is_kept = any(path.startswith(f"{mount}/") for mount in kept)
        it.hold(is_kept, f"{key} '{path}' is on a volume of the StatefulSet")
    if spec.get("replicas", 1) > 1:
        it.hold(files.startswith("s3://"), "several pods have one bucket")
    it.hold("url" not in conf.get("store", {}), "the address of Redis is in a Secret")
    env = {e["name"]: e for e in pod["containers"][0].get("env", [])}
    source = env.get("TOLLGATE__STORE__URL", {}).get("valueFrom", {}).get("secretKeyRef", {})
    it.hold(source.get("key") == "url" and not source.get("optional"), "store.url is of a Secret")
    secret = it.all("Secret").get(source.get("name"), {}).get("data", {}).get("url")
    if it.all("Secret"):
        url = base64.b64decode(secret or "").decode()
        is_redis = re.match("rediss?(-cluster|-sentinel)?://", url)
        it.hold(is_redis, f"the Secret names a Redis: {url!r}")


def config_rolls_pods(it, sets, conf_map):
    pod = sets["spec"]["template"]["spec"]
    name = conf_map["metadata"]["name"]
    it.hold(re.fullmatch("tollgate-config-[a-z0-9]{10}", name), f"{name} ends in a digest")
    volumes = {v["name"]: v for v in pod.get("volumes", [])}
    mounted = [m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] + "/" == CONFIG]
    named = [volumes[m["name"]].get("configMap", {}).get("name") for m in mounted]
    it.hold(named == [name], f"{CONFIG} is {name}, not {named}")
    it.hold(CONFIG + "tollgate.toml" in pod["containers"][0]["args"], "the file is that of --conf")


def services_show_their_port_only(it, labels):
    services = it.all("Service")
    ports = {n: {p["targetPort"] for p in s["spec"]["ports"]} for n, s in services.items()}
    it.hold(ports == SERVICES, f"services have {ports}")
    for name, service in services.items():
        spec = service["spec"]
        selected = spec.get("selector", {}).items() <= labels.items() and spec.get("selector")
        it.hold(selected, f"service {name} selects the pods")
        it.hold(spec.get("type", "ClusterIP") == "ClusterIP", f"service {name} is of the cluster")
    headless = it.one("StatefulSet")["spec"]["serviceName"]
    is_headless = services.get(headless, {}).get("spec", {}).get("clusterIP") == "None"
    it.hold(is_headless, f"{headless} is headless")


def network_is_closed(it, labels):
    policies = it.all("NetworkPolicy").values()
    sources = {}
    for policy in policies:
        spec = policy["spec"]
        selected = spec["podSelector"].get("matchLabels", {})
        it.hold(selected and selected.items() <= labels.items(), "a policy selects the pods")
        for rule in spec.get("ingress", []):
            it.hold(rule.get("ports"), "a rule names its ports")
            for port in rule.get("ports", []):
                sources.setdefault(port["port"], []).extend(rule.get("from") or ["anywhere"])
    it.hold(any("Ingress" in p["spec"]["policyTypes"] for p in policies), "ingress is closed")
    it.hold(set(sources) == {"http", "admin", "console"}, f"three ports are let in: {set(sources)}")
    it.hold(sources.get("http") == ["anywhere"], "calls come from anywhere")
    for port, selector in (("admin", "namespaceSelector"), ("console", "podSelector")):
        given = sources.get(port, [])
        closed = given and all(s != "anywhere" and all(v.get("matchLabels") for v in s.values())
                               for s in given)
        it.hold(closed, f"{port} is for labelled peers: {given}")
        it.hold(any(s != "anywhere" and selector in s for s in given), f"{port} has a {selector}")


def disruptions_are_bounded(it, labels):
    spec = it.one("PodDisruptionBudget")["spec"]
    it.hold(spec.get("maxUnavailable") == 1 and "minAvailable" not in spec, "one pod may be away")
    it.hold(spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow", "a sick pod may be evicted")
    selected = spec.get("selector", {}).get("matchLabels", {})
    it.hold(selected and selected.items() <= labels.items(), "the budget selects the pods")


def monitor_finds_its_service(it):
    monitors = it.all("ServiceMonitor").values()
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        labels = {n: s["metadata"]["labels"].items() for n, s in it.all("Service").items()}
        named = [name for name, given in labels.items() if wanted <= given]
        it.hold(named == ["tollgate-admin"], f"the monitor finds {named}")
        asked = [(e["port"], e["path"]) for e in monitor["spec"]["endpoints"]]
        it.hold(asked == [("admin", "/metrics")], f"the monitor asks {asked}")


def config_is_accepted(it, text):
    program = os.environ.get("TOLLGATE_BIN")
    if not program:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        env = {"TOLLGATE__RULES__DIR": "lua-free-rules", "TOLLGATE__STORE__URL": "redis://r:6379/0"}
        done = subprocess.run([program, "--conf", file.name, "check"], env=env, text=True,
                              capture_output=True)
    it.hold(done.returncode == 0, f"tollgate check: {done.stderr or done.stdout}")
    return True


def judge(name):
    done = subprocess.run(["kubectl", "kustomize", str(TOP / name)], capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SystemExit(f"{name}: kustomize: {done.stderr}")
    it = Rendered(name, done.stdout)
    with tempfile.NamedTemporaryFile("w", suffix=f"-{name}.yaml") as file:
        file.write(done.stdout)
        file.flush()
        checked = subprocess.run(["kubernetes-validate", "--strict", "--quiet", "--no-warn",
                                  file.name], capture_output=True, text=True)
    it.hold(checked.returncode == 0, f"the schemas refuse it:\n{checked.stdout}{checked.stderr}")
    sets, conf_map = it.one("StatefulSet"), it.one("ConfigMap", "tollgate-config")
    text = conf_map["data"]["tollgate.toml"]
    conf, template = tomllib.loads(text), sets["spec"]["template"]
    labels = template["metadata"]["labels"]
    pod_is_restricted(it, template["spec"])
    pods_are_probed_and_drained(it, template["spec"], conf)
    state_outlives_pods(it, sets, conf)
    config_rolls_pods(it, sets, conf_map)
    services_show_their_port_only(it, labels)
    network_is_closed(it, labels)
    disruptions_are_bounded(it, labels)
    monitor_finds_its_service(it)
    if name == "example":
        it.hold(it.all("ServiceMonitor"), "the example has a monitor")
        enforced = it.one("Namespace")["metadata"]["labels"]
        it.hold(enforced.get("pod-security.kubernetes.io/enforce") == "restricted", "restricted")
    is_read = config_is_accepted(it, text)
    print(f"{name}: {len(it.objects)} objects" + ("" if is_read else ", no TOLLGATE_BIN to check"))
    return it.faults


if __name__ == "__main__":
    faults = judge("base") + judge("example")
    sys.exit("\n".join(faults) if faults else 0)
