"""Hosts on one machine: network namespaces on one switch, each with a name and a boot id of its own, so that its workers
share memory with no other's. It needs root and `ip`."""
import os
import pathlib
import signal
import subprocess
import time
import uuid

import measure

# What tells two machines apart, for who looks. In the mount namespace that `ip netns exec` makes.
AS_HOST = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && hostname "$1" && shift && exec "$@"'


def ip(*words):
    try:
        done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
    except FileNotFoundError:
        raise measure.Unavailable("there is no program ip (package iproute2)") from None
    if done.returncode:
        raise measure.Unavailable(f"ip {' '.join(words)}: {done.stdout.strip()}")


class Hosts:
    """`folder` is for files of theirs."""

    def __init__(self, count, folder):
        self.count = count
        self.boot_ids = [folder / f"boot{host}" for host in range(count)]
        for boot_id in self.boot_ids:
            boot_id.write_text(f"{uuid.uuid4()}\n")
        self.switch = f"ddprun-{os.getpid()}-switch"
        self.names = [f"ddprun-{os.getpid()}-{host}" for host in range(count)]

    def __enter__(self):
        try:
            self.connect()
        except BaseException:  # A signal's too: no __exit__ comes after this.
            self.__exit__()
            raise
        return self

    @staticmethod
    def address(host):
        return f"10.79.0.{host + 1}"

    def connect(self):
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", self.switch, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", name, "address", "add", self.address(host) + "/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")

    def __exit__(self, *_):
        for host in range(self.count):
            self.signal(host, signal.SIGKILL)
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def on(self, host, argv):
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", AS_HOST, str(self.boot_ids[host]),
                f"host{host}", *argv]

    def limit_rate(self, rate):
        """What each host sends, in the words of `tc`: "1gbit"."""
        for name in self.names:
            command = ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                       "burst", "256kb", "latency", "50ms"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            if done.returncode:
                raise measure.Unavailable(f"{' '.join(command)}: {done.stdout.strip()}")

    def plug(self, host, plugged):
        ip("-n", self.switch, "link", "set", f"port{host}", "up" if plugged else "down")

    def processes(self, host):
        """Whatever runs on it."""
        try:
            key = os.stat(f"/run/netns/{self.names[host]}").st_ino
        except OSError:
            return []
        found = []
        for link in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
            try:
                if os.stat(link).st_ino == key:
                    found.append(int(link.parts[2]))
            except OSError:
                pass  # Gone meanwhile, or a zombie.
        return found

    def signal(self, host, number):
        for pid in self.processes(host):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def left_after(self, limit_s):
        """The processes that are still there after so long; none as soon as there are none."""
        deadline = time.monotonic() + limit_s
        while left := [pid for host in range(self.count) for pid in self.processes(host)]:
            if time.monotonic() > deadline:
                return left
            time.sleep(0.05)
        return []
