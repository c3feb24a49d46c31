"""Hosts for tests: addresses of the loopback network, each with an sshd of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

ADDRESSES = ["127.0.0.2", "127.0.0.3"]
PROGRAMS = {
    name: shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("sshd", "ssh", "ssh-keygen")
}
_SERVER = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
MaxStartups 100
"""
_CLIENT = """\
Port {port}
IdentityFile {folder}/user_key
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


class Host:
    """An sshd at an address; all that it has started is the host."""

    def __init__(self, folder, address, port):
        self.address = address
        self._config = folder / f"sshd-{address}"
        self._config.write_text(_SERVER.format(port=port, address=address, folder=folder))
        self._port = port
        self.start()

    def start(self):
        Path("/run/sshd").mkdir(exist_ok=True)
        line = [PROGRAMS["sshd"], "-D", "-e", "-f", self._config]
        self._server = subprocess.Popen(line, stderr=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 10
        while time.monotonic() < end and self._server.poll() is None:
            with suppress(OSError), socket.create_connection((self.address, self._port), 1):
                return
            time.sleep(0.05)

    def send(self, number):
        """Send a signal to all processes of the host."""
        for pid in [self._server.pid, *descendants(self._server.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def die(self):
        # Stopped first: nothing is to come between the look and the kill.
        self.send(signal.SIGSTOP)
        self.send(signal.SIGKILL)
        self._server.wait()


class Hosts:
    """Two hosts, and what ssh needs to reach them."""

    def __init__(self, folder, port):
        for name in ("host_key", "user_key"):
            line = [PROGRAMS["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(line, check=True)
        config = folder / "ssh_config"
        config.write_text(_CLIENT.format(port=port, folder=folder))
        self.ssh = folder / "ssh"
        self.ssh.write_text(f'#!/bin/sh\nexec {PROGRAMS["ssh"]} -F {config} "$@"\n')
        self.ssh.chmod(0o755)
        self.file = folder / "hosts.txt"
        self.file.write_text("".join(f"{address}\n" for address in ADDRESSES))
        self.options = ("--hosts", self.file, "--ssh", self.ssh)
        self.hosts = [Host(folder, address, port) for address in ADDRESSES]

    def let_in(self):
        """Return why ssh does not come in; nothing if it does."""
        line = [self.ssh, "-o", "BatchMode=yes", ADDRESSES[0], "true"]
        done = subprocess.run(line, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def end(self):
        for host in self.hosts:
            host.die()


def descendants(pid):
    """Return the processes below another one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(folder.name)] = int(stat[1])
    found, added = {pid}, True
    while added:
        added = {child for child, parent in parents.items() if parent in found} - found
        found |= added
    return sorted(found - {pid})
