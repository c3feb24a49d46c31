"""Which processes there are, and what each finds in its environment."""

import os

import pytest
from gluon_svrg.launch import plan
from gluon_svrg.launch.plan import OWN_NAMES, Options, free_ports, orders_of, threads_of


@pytest.fixture(autouse=True)
def _outside(monkeypatch):
    for name in (*OWN_NAMES, "OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)


def test_one_worker_has_three_variables_more_than_the_launcher():
    (order,) = orders_of(Options(["script.py"], 1), 2)
    assert set(order.environment.items()) ^ set(os.environ.items()) == {
        ("GLUON_SVRG_ATTEMPT", "2"),
        ("GLUON_SVRG_RANK", "0"),
        ("GLUON_SVRG_WORKERS", "1"),
    }


@pytest.mark.parametrize("engine", ["sockets", "mpi"])
def test_sockets_and_mpi_need_workers_only(engine):
    orders = orders_of(Options(["-m", "module", "x"], 3, engine=engine, exact=False), 0)
    assert [order.name for order in orders] == ["worker 0", "worker 1", "worker 2"]
    assert all(list(order.command[1:]) == ["-m", "module", "x"] for order in orders)
    assert [order.environment["GLUON_SVRG_RANK"] for order in orders] == ["0", "1", "2"]
    own = {name: orders[1].environment.get(name) for name in OWN_NAMES}
    assert own["GLUON_SVRG_WORKERS"] == "3"
    assert own["GLUON_SVRG_ENGINE"] == engine
    assert own["GLUON_SVRG_EXACT"] == "0"
    assert own["GLUON_SVRG_ADDRESS"].startswith("127.0.0.1:")
    assert len(bytes.fromhex(own["GLUON_SVRG_KEY"])) == 32
    assert not [name for name in orders[0].environment if name.startswith("DMLC")]


def test_servers_and_scheduler():
    orders = orders_of(Options(["script.py"], 2, servers=2, exact=True), 0)
    names = ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]
    assert [order.name for order in orders] == names
    assert [order.is_worker for order in orders] == [False] * 3 + [True] * 2
    roles = [order.environment["DMLC_ROLE"] for order in orders]
    assert roles == ["scheduler", "server", "server", "worker", "worker"]
    for order in orders:
        assert order.environment["DMLC_NUM_WORKER"] == "2"
        assert order.environment["DMLC_NUM_SERVER"] == "2"
        assert order.environment["DMLC_PS_ROOT_URI"] == "127.0.0.1"
        assert order.environment["DMLC_NODE_HOST"] == "127.0.0.1"
    ports = {order.environment["DMLC_PS_ROOT_PORT"] for order in orders}
    assert len(ports) == 1
    # Only workers have the key, and only they are workers to this package.
    assert all("GLUON_SVRG_KEY" in order.environment for order in orders[3:])
    assert not any("GLUON_SVRG_KEY" in order.environment for order in orders[:3])
    assert not any("GLUON_SVRG_WORKERS" in order.environment for order in orders[:3])


def test_nothing_of_an_outer_launcher_is_handed_on(monkeypatch):
    for name in OWN_NAMES:
        monkeypatch.setenv(name, "outer")
    for options in (Options(["s.py"], 1), Options(["s.py"], 2), Options(["s.py"], 2, 1, "sockets")):
        for order in orders_of(options, 0):
            assert "outer" not in order.environment.values()


def test_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads_of(Options(["s.py"], 3)) == 2
    assert threads_of(Options(["s.py"], 9)) == 1
    assert threads_of(Options(["s.py"], 3, threads=5)) == 5


def test_who_sets_the_threads(monkeypatch):
    def threads(**settings):
        return {
            order.environment["OMP_NUM_THREADS"]
            for order in orders_of(Options(["s.py"], 2, **settings), 0)
        }

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads() == {"4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads() == {"7"}
    assert threads(threads=3) == {"3"}
    assert threads(threads=3, variables={"OMP_NUM_THREADS": "1"}) == {"1"}


def test_variables_are_for_all():
    for order in orders_of(Options(["s.py"], 2, variables={"A": "b"}), 0):
        assert order.environment["A"] == "b"
    assert orders_of(Options(["s.py"], 1, variables={"A": "b"}), 0)[0].environment["A"] == "b"


def test_ports_are_free_and_not_the_same():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(1024 < port < 65536 for port in ports)


def test_the_server_module_is_there():
    assert plan.SERVER == "gluon_svrg.workers.server"
