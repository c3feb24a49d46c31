"""The options that say over which machines a job goes."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path

from gluon_svrg.launch.hosts import (
    SILENCE,
    WAIT,
    Across,
    endpoint,
    key_of_job,
    read_hosts,
    resolve,
)

_LEAST_SILENCE = 1.0
"""Seconds: five signs of life."""


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of the command line."""
    group = parser.add_argument_group(
        "several machines",
        "Over ssh: one line, anywhere. Or the same line on each machine, with a --node-rank of its "
        "own and one GLUON_SVRG_JOB_KEY in the environment of all.",
    )
    group.add_argument(
        "--hosts",
        type=Path,
        help="a file with a host a line (user@name slots=3 address=10.0.0.3): over ssh, each has "
        "-n workers and -s servers; the same folder and Python have to be there",
        metavar="FILE",
    )
    group.add_argument(
        "--ssh", help="the command for ssh (ssh), as in 'ssh -p 2222'", metavar="COMMAND"
    )
    group.add_argument("--nodes", type=int, help="how many machines start this line", metavar="N")
    group.add_argument("--node-rank", type=int, help="the number of this one, from 0", metavar="I")
    group.add_argument(
        "--master", help="where the machine of --node-rank 0 listens", metavar="HOST:PORT"
    )
    group.add_argument(
        "--address",
        help="where the other machines reach this one (from where it reaches machine 0)",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=WAIT,
        help="for how long to wait for a machine, at the start and when one is gone (300)",
        metavar="SECONDS",
    )
    group.add_argument(
        "--host-timeout",
        type=float,
        default=SILENCE,
        help="a machine without a sign of life for so long counts as gone (5)",
        metavar="SECONDS",
    )


def across_of(given: argparse.Namespace) -> Across | None:
    """Return over which machines the job goes; None: one, without agents.

    Raises
    ------
    ValueError
        If the options do not fit together, or the key is missing.
    """
    if not given.wait > 0 or math.isnan(given.wait):
        raise ValueError(f"--wait must be a positive number of seconds, got {given.wait:g}")
    if not given.host_timeout >= _LEAST_SILENCE:
        raise ValueError(
            f"--host-timeout must be at least {_LEAST_SILENCE:g} s, got {given.host_timeout:g}: a "
            "machine gives a sign of life each 0.2 s, and a loaded one is late at times"
        )
    of_nodes = {
        "--nodes": given.nodes,
        "--node-rank": given.node_rank,
        "--master": given.master,
        "--address": given.address,
    }
    named = [name for name, value in of_nodes.items() if value is not None]
    if given.hosts is not None:
        if named:
            raise ValueError(
                f"--hosts and {named[0]} are two ways to name the machines, got both: over ssh "
                "one line starts all, else leave --hosts out"
            )
        return Across(
            hosts=read_hosts(given.hosts),
            ssh=shlex.split(given.ssh or "ssh") or ["ssh"],
            wait=given.wait,
            silence=given.host_timeout,
        )
    if given.ssh is not None:
        raise ValueError(f"--ssh needs --hosts, got {given.ssh!r} alone: name the file of hosts")
    if not named:
        return None
    return _by_lines(given, [name for name in list(of_nodes)[:3] if name not in named])


def _by_lines(given: argparse.Namespace, missing: list[str]) -> Across:
    if missing:
        raise ValueError(
            f"--nodes, --node-rank and --master belong together, and {missing[0]} is missing: as "
            "in --nodes 4 --node-rank 0 --master node0:29500"
        )
    if given.nodes < 1:
        raise ValueError(f"--nodes must be a whole number from 1 on, got {given.nodes}")
    if not 0 <= given.node_rank < given.nodes:
        raise ValueError(
            f"--node-rank must be from 0 to {given.nodes - 1}, got {given.node_rank}: it is the "
            f"number of this machine among --nodes {given.nodes}"
        )
    master = endpoint(given.master)
    if given.address is not None and resolve(given.address) is None:
        raise ValueError(
            f"--address must be an IPv4 address of this machine or a name of one, got "
            f"{given.address!r}: ip -4 address shows them"
        )
    return Across(
        nodes=given.nodes,
        rank=given.node_rank,
        master=master,
        address=given.address,
        key=key_of_job(),
        wait=given.wait,
        silence=given.host_timeout,
    )
