"""Machines on one machine: network namespaces on a bridge, as on a switch.

Needs root, `ip` and `tc`. Each machine has a link of its own to the bridge.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import TracebackType

NETWORK = "10.77.0."
PACKET = 9000
"""Bytes of a packet: with the usual 1500 to make them would be what takes the time here."""
_BURST = 32 * 1024
"""Bytes that may go at once, whatever the rate."""


def missing() -> str | None:
    """Return why there can be no such machines here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool}: it is in Debian's iproute2"
    return None


class Machines:
    """`number` machines, while the ``with`` block lasts.

    Parameters
    ----------
    number : int
        How many.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._tag = f"gs{os.getpid() % 10_000}"
        self.addresses = [f"{NETWORK}{i + 1}" for i in range(number)]

    def __enter__(self) -> Machines:
        bridge = f"{self._tag}b"
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} mtu {PACKET} up")
        for i, address in enumerate(self.addresses):
            machine, port = f"{self._tag}m{i}", f"{self._tag}p{i}"
            _run(f"ip netns add {machine}")
            _run(f"ip link add {port} type veth peer name eth0 netns {machine}")
            _run(f"ip link set {port} mtu {PACKET} master {bridge} up")
            _run(f"ip -n {machine} addr add {address}/24 dev eth0")
            for device in ("lo", "eth0"):
                _run(f"ip -n {machine} link set {device} up")
            _run(f"ip -n {machine} link set eth0 mtu {PACKET}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for i in range(self._number):
            _run(f"ip netns del {self._tag}m{i}", check=False)
        _run(f"ip link del {self._tag}b", check=False)

    def limit(self, rate: float | None) -> None:
        """Let each link carry `rate` bits a second in each direction; None: as fast as it goes."""
        for i in range(self._number):
            ends = (f"-n {self._tag}m{i} qdisc {{}} dev eth0", f"qdisc {{}} dev {self._tag}p{i}")
            for device in ends:
                if rate is None:
                    _run(f"tc {device.format('del')} root", check=False)
                else:
                    shape = f"tbf rate {rate:.0f}bit burst {_BURST} latency 1s"
                    _run(f"tc {device.format('replace')} root {shape}")

    @property
    def ssh(self) -> str:
        """What stands for ssh: its first argument that is an address names the machine."""
        return f"{sys.executable} {os.path.abspath(__file__)} {self._tag}"


def _run(line: str, check: bool = True) -> None:
    subprocess.run(line.split(), check=check, capture_output=not check)


def main() -> None:
    """Stand for ssh: ``TAG [options] ADDRESS COMMAND ...``."""
    tag, *rest = sys.argv[1:]
    at = next(i for i, argument in enumerate(rest) if argument.startswith(NETWORK))
    machine = f"{tag}m{int(rest[at].removeprefix(NETWORK)) - 1}"
    command = " ".join(rest[at + 1 :])
    os.execvp("ip", ["ip", "netns", "exec", machine, "sh", "-c", command])


if __name__ == "__main__":
    main()
