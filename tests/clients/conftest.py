"""`gateway`: every test gets it, on each store and on each simulator of the vendors."""

import pytest

import stack

STORES = ("sqlite", "redis")


def pytest_generate_tests(metafunc):
    if "gateway" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("vendors")
        metafunc.parametrize("store", STORES, scope="session")
        metafunc.parametrize("vendor_kind", only.args if only else tuple(stack.VENDORS), scope="session")


@pytest.fixture(scope="session")
def stacks(tmp_path_factory):
    stacks = stack.Stacks(tmp_path_factory.mktemp("stacks"))
    yield stacks
    stacks.stop_since(0)


@pytest.fixture
def gateway(stacks, store, vendor_kind):
    """gateway() is the healthy one that tests share; gateway(vendor_b=["status=503", ""]) is one of
    this test's own, with two routes to vendor_b of which the first has a fault."""
    stacks.gateway(store, vendor_kind, {})
    mark = len(stacks.running)
    yield lambda **faults: stacks.gateway(store, vendor_kind, faults)
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
