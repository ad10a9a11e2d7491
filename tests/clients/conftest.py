"""`gateway`: every test gets it, on each store and on each simulator of the vendors.

`tapped` is the same with a line to vendor_a that remembers what went over it.
"""

import os

import pytest

import stack

STORES = ("sqlite", "redis")


def pytest_generate_tests(metafunc):
    if "vendor_kind" in metafunc.fixturenames:
        for name, marker, usual in ("store", "stores", STORES), ("vendor_kind", "vendors", stack.VENDORS):
            only = metafunc.definition.get_closest_marker(marker)
            metafunc.parametrize(name, only.args if only else usual, scope="session")


# Files and tests that take much longer than others, most of it waiting.
LONG = ("test_no_page_has_a_fault_that_axe_finds", "test_webhooks.py", "test_disaster.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest tests come first, so that no worker has them for itself when the others have ended. Tests
    of one framework stand together behind them: few workers have to start it, and early."""
    names = {item: getattr(item, "callspec", None) and item.callspec.params.get("framework") for item in items}
    items.sort(key=lambda item: (place_of(item), names[item] or "~"))


def place_of(item):
    return next((place for place, long in enumerate(LONG) if long in item.nodeid), len(LONG))


@pytest.fixture(scope="session")
def stacks(tmp_path_factory):
    # As pytest-xdist numbers its workers, if there are any.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    stacks = stack.Stacks(tmp_path_factory.mktemp("stacks"), worker, workers)
    yield stacks
    stacks.stop_since(0)


@pytest.fixture
def gateway(request, stacks, store, vendor_kind):
    """gateway() is the healthy one that tests share; gateway(vendor_b=["status=503", ""]) is one of
    this test's own, with two routes to vendor_b of which the first has a fault, and
    gateway(videos={"open_max": 2}) one with that in its configuration; tls=False has a vendor without."""
    yield from gateways(request, stacks, store, vendor_kind, tapped=False)


@pytest.fixture
def tapped(request, stacks, store, vendor_kind):
    """As gateway(), but gateway.wire tells what vendor_a was asked."""
    yield from gateways(request, stacks, store, vendor_kind, tapped=True)


def gateways(request, stacks, store, vendor_kind, tapped):
    # Tests of videos say so in their names.
    jobs = "video" in request.node.nodeid
    shared = stacks.gateway(store, vendor_kind, {}, tapped, jobs)
    if tapped:
        shared.wire.forget()
    mark = len(stacks.running)
    yield lambda **wishes: stacks.gateway(store, vendor_kind, wishes, tapped, jobs)
    stacks.stop_since(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows what the processes of its test wrote."""
    report = yield
    if report.failed and "stacks" in getattr(item, "funcargs", {}):
        for part in item.funcargs["stacks"].running[-3:]:
            if log := getattr(getattr(part, "process", None), "log", None):
                report.sections.append((str(log), log.read_text(errors="replace")[-3000:]))
    return report
