"""The number of cores: affinity and the limits of control groups, from made-up files."""

import os

import pytest
from gluon_svrg import _cores

HERE = len(os.sched_getaffinity(0))
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"


@pytest.fixture
def machine_of(tmp_path, monkeypatch):
    """Return a function that makes a root folder with these files, of a machine of 64 cores."""

    def make(cgroup, files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
        for name, text in {"proc/self/cgroup": cgroup, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(text))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        # Version 2.
        ("0::/\n", {f"{V2}/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {f"{V2}/cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {}, 64),
        ("0::/\n", {f"{V2}/cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {f"{V2}/cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {f"{V2}/cpu.max": "6400000 50000\n"}, 64),
        # Nested: the least of all.
        (
            "0::/pods/pod7/job\n",
            {
                f"{V2}/pods/cpu.max": "max 100000",
                f"{V2}/pods/pod7/cpu.max": "300000 100000",
                f"{V2}/pods/pod7/job/cpu.max": "800000 100000",
            },
            3,
        ),
        # The path of the host; of it, the container's group alone is mounted.
        ("0::/docker/abc\n", {f"{V2}/cpu.max": "400000 100000"}, 4),
        # Version 1, alone and beside version 2.
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {f"{V1}/x/cpu.cfs_quota_us": "500000\n", f"{V1}/x/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        (
            "3:cpuacct,cpu:/docker/abc\n0::/\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            "3:cpu,cpuacct:/\n",
            {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            64,
        ),
        # The group of another controller says nothing.
        (
            "3:cpuset:/\n",
            {
                "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpuset/cpu.cfs_period_us": "100000",
            },
            64,
        ),
        # A name that is not UTF-8.
        ("0::/\udcff\n", {f"{V2}/\udcff/cpu.max": "200000 100000"}, 2),
        # What cannot be understood is no limit.
        ("nonsense\n0::/a\n", {f"{V2}/a/cpu.max": "what\n"}, 64),
        ("0::/\n", {f"{V2}/cpu.max": ""}, 64),
    ],
)
def test_limits_of_control_groups(machine_of, cgroup, files, cores):
    assert _cores.usable_cores(machine_of(cgroup, files)) == cores


def test_a_system_without_control_groups(tmp_path):
    assert _cores.usable_cores(tmp_path) == HERE


def test_the_affinity_is_never_exceeded(machine_of, monkeypatch):
    root = machine_of("0::/\n", {f"{V2}/cpu.max": "1000000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert _cores.usable_cores(root) == 2
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS, Windows
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert _cores.usable_cores(root) == 1


def test_as_many_threads_as_the_limit_allows(monkeypatch):
    monkeypatch.setattr(_cores, "usable_cores", lambda: 3)
    environ = {}
    _cores.use_every_core(environ, mxnet_is_loaded=False)
    assert environ == {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "10000"}


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_how_threads_wait_is_the_users_to_say(own):
    environ = dict(own)
    _cores.use_every_core(environ, mxnet_is_loaded=False)
    assert environ == own | {"OMP_NUM_THREADS": environ["OMP_NUM_THREADS"]}


def test_the_users_number_of_threads_does_not_say_how_they_wait():
    environ = {"OMP_NUM_THREADS": "5"}
    _cores.use_every_core(environ, mxnet_is_loaded=False)
    assert environ == {"OMP_NUM_THREADS": "5", "GOMP_SPINCOUNT": "10000"}


def test_once_mxnet_is_loaded_nothing_is_promised(monkeypatch):
    monkeypatch.setattr(_cores, "usable_cores", lambda: 4)
    environ = {}
    with pytest.warns(RuntimeWarning, match="uses half of the 4 cores"):
        _cores.use_every_core(environ, mxnet_is_loaded=True)
    assert environ == {}
