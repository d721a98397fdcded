"""A port for a test's launcher."""
import contextlib
import random
import socket


def free_port():
    """As tests/testing/process.cpp: below those that the kernel gives to outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        ephemeral = int(file.read().split()[0])
    while True:
        port = random.randrange(10_000, ephemeral)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
