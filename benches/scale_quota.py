"""A share of a core for a process: the kernel's control groups, of either version.

Two gateways with a core each, Redis, the simulator and the load would need five cores. A quarter of a core
for each gateway shows the same on two: they have their full share, and everything else has room.
"""

import os
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000


class Quota:
    """A group whose members have such a share of a core, all together."""

    made = []

    def __init__(self, share):
        parent, self.new = home()
        self.folder = parent / f"tollgate-bench-{os.getpid()}-{len(Quota.made)}"
        self.folder.mkdir()
        Quota.made.append(self)
        allowed = int(PERIOD_US * share)
        if self.new:
            (self.folder / "cpu.max").write_text(f"{allowed} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(allowed))

    def take(self, pid):
        (self.folder / "cgroup.procs").write_text(str(pid))

    def leave(self):
        """Members go one up, where there is no bound, and the group goes."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            (self.folder.parent / "cgroup.procs").write_text(pid)
        self.folder.rmdir()
        Quota.made.remove(self)


def home():
    """Where groups can be made, and whether they are of the second version."""
    for name in ("cpu", "cpu,cpuacct"):
        if os.access(MOUNT / name / "cgroup.procs", os.W_OK) and (MOUNT / name / "cpu.cfs_quota_us").exists():
            return MOUNT / name, False
    control = MOUNT / "cgroup.subtree_control"
    if os.access(control, os.W_OK) and "cpu" in control.read_text().split():
        return MOUNT, True
    raise PermissionError("no control group for the CPU can be made here")


def leave_all():
    for quota in list(Quota.made):
        quota.leave()
