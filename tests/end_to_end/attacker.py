#!/usr/bin/env python3
"""A stranger on a job's network: attacks its one port. For attackers_test.cpp and
scripts/bench strangers.

  attacker.py ATTACK HOST PORT [AMOUNT] [key=value ...]

Each attack says "began" when it is under way and "ended ..." with what came of it. It knows nothing of the
job but the port, and, where it says hello, what a guess or an ear on a plain network would give (run_id=,
nnodes=MIN:MAX). With secret=FILE it is one who has the secret, and lies. rate=N: at most N attempts a second, and
on SIGTERM it says how many there were.
"""

import hmac
import json
import os
import pathlib
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time


class Pace:
    """How often something is tried: at will, or `rate` times a second and no faster after a delay."""

    def __init__(self):
        self.tried, self.interval, self.next = 0, 0.0, time.monotonic()

    def limit(self, rate):
        self.interval = 1 / float(rate)
        signal.signal(signal.SIGTERM, self.end)

    def step(self):
        self.tried += 1
        if not self.interval:
            return
        now = time.monotonic()
        if self.next > now:
            time.sleep(self.next - now)
        self.next = max(self.next, now - 0.1) + self.interval

    def end(self, *_):
        os.write(1, f"ended tried={self.tried}\n".encode())
        os._exit(0)


pace = Pace()


def connect(host, port, timeout=10.0, own=""):
    return socket.create_connection((host, port), timeout=timeout, source_address=(own, 0) if own else None)


def say(text):
    print(text, flush=True)


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def count_open(held):
    return sum(is_open(connection) for connection in held)


def few_open(count, given):
    """`count()` of the connections that are open, again until there are no more than few=N: what the kernel has accepted and
    the job has not is nobody's yet, which on a busy machine are thousands for a moment. No longer than a minute."""
    end = time.monotonic() + 60
    while (still := count()) > int(given.get("few", sys.maxsize)) and time.monotonic() < end:
        time.sleep(0.1)
    return still


def silent(host, port, amount, given):
    """Connections that say nothing, and are kept."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    share = hard - 100
    if amount > share:  # As many processes as it takes.
        return shared_out(host, port, amount, share, given)
    held, refused = [], 0
    for _ in range(amount):
        pace.step()
        try:
            held.append(connect(host, port))
        except OSError:
            refused += 1
    say("began")
    if "asked" in given:  # By whoever started it, until that has ended in whatever way.
        for _ in sys.stdin:
            say(f"{len(held)} {refused} {count_open(held)}")
        return
    say(f"ended opened={len(held)} refused={refused} open={few_open(lambda: count_open(held), given)}")
    time.sleep(float(given.get("stay", 0)))


def shared_out(host, port, amount, share, given):
    helpers = []
    for begin in range(0, amount, share):
        words = [sys.executable, "-B", __file__, "silent", host, str(port), str(min(share, amount - begin)), "asked=1"]
        helpers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for helper in helpers:
        helper.stdout.readline()
    say("began")

    def sums():
        """Opened, refused, open."""
        for helper in helpers:
            helper.stdin.write("\n")
            helper.stdin.flush()
        return [sum(numbers) for numbers in zip(*(map(int, helper.stdout.readline().split()) for helper in helpers))]

    still = few_open(lambda: sums()[2], given)
    opened, refused, _ = sums()
    say(f"ended opened={opened} refused={refused} open={still}")
    time.sleep(float(given.get("stay", 0)))
    for helper in helpers:
        helper.stdin.close()
        helper.wait()


def half_open(host, port, amount, given):
    """First packets of connections from addresses that nobody has: never completed."""
    own = given["from"]
    prefix = own.rsplit(".", 1)[0]
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    say("began")

    def checksum(data):
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return ~total & 0xFFFF

    target, sent = socket.inet_aton(host), 0
    for number in range(amount):
        pace.step()
        source = socket.inet_aton(f"{prefix}.{100 + number % 150}")
        tcp = struct.pack("!HHIIBBHHH", 1024 + number // 150 % 60000, port, number, 0, 5 << 4, 2, 64240, 0, 0)
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0, source, target)
        try:
            sender.sendto(head + tcp, (host, 0))
            sent += 1
        except OSError:
            time.sleep(0.001)
    say(f"ended sent={sent}")


def flood(host, port, seconds, pieces):
    """Connection after connection, each with the next of `pieces`; what came back is put together."""
    say("began")
    end, count, replies = time.monotonic() + seconds, 0, set()
    while time.monotonic() < end:
        pace.step()
        try:
            with connect(host, port) as connection:
                connection.sendall(pieces[count % len(pieces)])
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(2)
                replies.add(connection.recv(4096))
        except OSError:
            pass
        count += 1
    for reply in sorted(replies)[:8]:
        say(f"heard {reply!r}")
    say(f"ended connections={count}")


def junk(host, port, seconds, given):
    pieces = [os.urandom(64), b"\x16\x03\x01\x02\x00\x01" + os.urandom(512), b"GET / HTTP/1.1\r\n\r\n", b"{" * 9000 + b"\n",
              b"{\"type\":\"hello\"}\n", b"\x16", b"\x16\x03\x01\xff\xff" + b"\0" * 20000, b"\0\xce\xf7\x85\x3c\x0dabcd"]
    flood(host, port, seconds, pieces)


def slow_tls(host, port, amount, given):
    """Handshakes that come `step` bytes each `pause` seconds, until nobody takes any more of them; `size`: as large as
    they say they become, `sources`: ADDRESS+N, from N addresses of this host in turns."""
    first, _, count = given.get("sources", "+1").partition("+")
    network, _, begin = first.rpartition(".")
    owns = [f"{network}.{int(begin) + i}" if first else "" for i in range(int(count))]
    size, step = int(given.get("size", 512)), int(given.get("step", 1))
    record = struct.pack("!BHHBBH", 0x16, 0x0301, size, 1, 0, size - 4) + b"\x03\x03" + os.urandom(size - 6)
    held = [connect(host, port, own=owns[number % len(owns)]) for number in range(amount)]
    say("began")
    sent = 0
    for at in range(0, min(int(given.get("bytes", 40)), len(record) - 1), step):
        for connection in held:
            pace.step()
            try:
                connection.send(record[at:at + step])
            except OSError:
                pass
        sent += step
        time.sleep(float(given.get("pause", 0.1)))
        if not any(is_open(connection) for connection in held):
            break
    say(f"ended opened={amount} bytes={sent} open={few_open(lambda: count_open(held), given)}")


def client_hello(extensions, version=b"\x03\x03"):
    """In as many records as it takes."""
    listed = b"".join(struct.pack("!HH", kind, len(data)) + data for kind, data in extensions)
    body = (version + os.urandom(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" +
            struct.pack("!H", min(len(listed), 0xFFFF)) + listed)
    message = b"\x01" + struct.pack("!I", len(body))[1:] + body
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(message[i:i + 16384])) + message[i:i + 16384]
                    for i in range(0, len(message), 16384))


def tls_shapes(host, port, seconds, given):
    """What TLS has had attacks with: renegotiation, oversized tickets, extensions and records, and records
    that have no place where they are."""
    tls13 = [(43, b"\x02\x03\x04"), (10, b"\0\x02\0\x1d"), (45, b"\x01\x01"),
             (51, b"\0\x24\0\x1d\0\x20" + os.urandom(32))]

    def ticket(size):
        identity = struct.pack("!H", size) + os.urandom(size) + b"\0\0\0\0"
        return (41, struct.pack("!H", len(identity) & 0xFFFF) + identity + b"\0\x21\x20" + os.urandom(32))

    flood(host, port, seconds, [
        client_hello([(0xFF01, b"\x0c" + os.urandom(12))]),           # TLS 1.2, to be renegotiated.
        client_hello([(0xFF01, b"\0")]) + b"\x16\x03\x03\0\x04\0\0\0\0" * 1000,  # HelloRequests.
        client_hello(tls13 + [ticket(12_000)]), client_hello(tls13 + [ticket(65_000)]),
        client_hello(tls13) + b"\x16\x03\x03\xff\xff" + b"\x04" * 65_535,  # A NewSessionTicket of a client's.
        client_hello(tls13 + [(0x1000 + number, b"") for number in range(3_000)]),
        client_hello(tls13 + [(0x2A2A, os.urandom(65_000))]),
        client_hello(tls13) + b"\x14\x03\x03\0\x01\x01" * 5_000,  # ChangeCipherSpec without end.
        client_hello(tls13) + os.urandom(20_000),
        b"\x16\x03\x01\0\0" * 4_000, b"\x15\x03\x03\0\x02\x01\0" * 4_000, b"\x17\x03\x03\x40\0" + os.urandom(16_384),
        b"\x16\x03\x03\0\x05\x18\0\0\x01\x01"])                        # A KeyUpdate for a beginning.


def spoken_version():
    """With another one a stranger would be refused for that alone."""
    header = pathlib.Path(__file__).parents[2] / "rendezvous/control/control_message.h"
    return int(re.search(r"control_protocol_version = (\d+);", header.read_text()).group(1))


def hello(given, number):
    low, _, high = given.get("nnodes", "1:2").partition(":")
    message = {
        "type": "hello", "version": int(given.get("version", spoken_version())), "run_id": given.get("run_id", "none"),
        "node_id": f"stranger-{os.getpid()}-{number}", "host": given.get("host", "stranger\x1b[2J"),
        "address": given.get("address", ""), "nproc": int(given.get("nproc", 1)), "role": "default",
        "elastic": given.get("elastic", "1") == "1", "nnodes_min": int(low), "nnodes_max": int(high or low),
        "max_restarts": 0, "pid": 1}
    if "rank" in given:
        message["node_rank"] = int(given["rank"])
    return json.dumps(message).encode() + b"\n"


def refused(host, port, seconds, given):
    """Hellos without the secret."""
    flood(host, port, seconds, [hello(given, 0), hello({**given, "run_id": "another"}, 1)])


def tls_client(host, port, given, *more):
    """OpenSSL's client with the job's key, as docs/control_protocol.md derives it from the secret."""
    secret = pathlib.Path(given["secret"]).read_bytes().strip()
    extracted = hmac.digest(b"ddprun job secret", secret, "sha256")
    key = hmac.digest(extracted, b"control 1\0" + given.get("run_id", "none").encode() + b"\x01", "sha256")
    return subprocess.Popen(
        ["openssl", "s_client", *more, "-connect", f"{host}:{port}", "-psk", key.hex(), "-psk_identity", "ddprun",
         "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


class TlsSocket:
    """As much of a socket as Member needs, of one who has the secret."""

    def __init__(self, host, port, given):
        self.client = tls_client(host, port, given, "-quiet")

    def sendall(self, data):
        self.client.stdin.write(data)
        self.client.stdin.flush()

    def fileno(self):
        return self.client.stdout.fileno()

    def recv(self, size):
        return os.read(self.fileno(), size)

    def close(self):
        self.client.kill()
        self.client.communicate()


class Member:
    """An agent that lies."""

    def __init__(self, host, port, given, number, claim=None):
        self.connection = TlsSocket(host, port, given) if "secret" in given else connect(host, port)
        self.rest = b""
        self.send(**{**json.loads(hello(given, number)), **(claim or {})})

    def send_bytes(self, data):
        self.connection.sendall(data)

    def send(self, **message):
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def next(self, seconds):
        """The next message; None: nothing came, or the connection ended."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.connection], [], [], left)[0]:
                return None
            try:
                data = self.connection.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def wait_for(self, kind, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self.next(end - time.monotonic())
            if message is None:
                return None
            if message["type"] == kind:
                return message
            if message["type"] == "heartbeat":
                self.send(type="heartbeat")
        return None


def join_and(host, port, seconds, given):
    """Joins again and again; `then`: drop, leave, or fail."""
    say("began")
    end, rounds, joined = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        pace.step()
        try:
            member = Member(host, port, given, joined)
            if member.wait_for("welcome", 5) is None:
                continue
            joined += 1
            start = member.wait_for("round", min(1.0, end - time.monotonic()))
            if start is not None:
                rounds += 1
                if given.get("then") == "leave":
                    member.send(type="leaving", signal=2)
                if given.get("then") == "fail":
                    member.send(type="worker_failed", attempt=start["attempt"], term=start["term"], cause={
                        "kind": "start_failed", "host": "x", "node_rank": 0, "rank": 0, "local_rank": 0, "pid": 1,
                        "exit_code": 3, "signal": 0, "core_dumped": False, "retriable": False, "attempt": 0,
                        "ran_ms": 1, "message": "\x1b[2J", "last_stderr": ""})
                    member.next(1)
            member.connection.close()
        except OSError:
            time.sleep(0.01)
    say(f"ended joined={joined} rounds={rounds}")


def mute(host, port, seconds, given):
    """Joins, is alive, and never says anything about its workers."""
    member = Member(host, port, given, 0)
    say("began" if member.wait_for("round", 60) else "never began")
    began = time.monotonic()
    message = member.wait_for("finish", seconds)
    say(f"ended {message['why'] if message else 'without a word'} after {time.monotonic() - began:.1f} s")


def spare(host, port, seconds, given):
    """Stands by as a spare, and tries the store."""
    member = Member(host, port, given, 0)
    say("began" if member.wait_for("welcome", 20) else "never began")
    with connect(host, port) as store:
        store.sendall(b"\0\xce\xf7\x85\x3c\x0dabcd")
        store.settimeout(5)
        try:
            answer = store.recv(4)
        except OSError:
            answer = b""
    say(f"ended store={'served' if answer == b'abcd' else 'refused'}")


def impossible(host, port, amount, given):
    """Hellos of one who has the secret, and claims what cannot be."""
    claims = [{"nproc": number} for number in (0, -1, 4097, 2**31, 1e300, "4", None, [1])]
    claims += [{"nnodes_min": low, "nnodes_max": high} for low, high in ((0, 0), (-1, 2), (3, 2), (1, 10**9), ("2", "3"))]
    claims += [{"node_rank": number} for number in (-1, 10**9, 1.5, "0")]
    claims += [{"version": number} for number in (-1, 0, 99, 2**40)]
    claims += [{"type": kind} for kind in ("welcome", "refused", "round", "stop", "finish", "heartbeat", "started", "x", 7)]
    claims += [{"run_id": "another"}, {"run_id": "x" * 60_000}, {"node_id": "n" * 60_000},
               {"host": "h" * 70_000}, {"elastic": "yes"}, {"elastic": False}, {"address": {"a": 1}}, {"role": None},
               {"pid": 2**70}, {"max_restarts": -(2**70)}, {"more": json.loads("[" * 200 + "]" * 200)}]
    say("began")
    welcomed = refusals = 0
    for claim in claims:
        try:
            member = Member(host, port, given, 0, claim)
        except BrokenPipeError:  # Of a hello beyond all bounds no more was heard than was enough.
            continue
        try:
            answer = member.next(15)
        except OSError:
            answer = None
        refusals += answer is not None and answer["type"] == "refused"
        if answer is not None and answer["type"] == "welcome" and "more" not in claim:
            welcomed += 1
            say(f"welcomed {claim}"[:200])
        member.connection.close()
    say(f"ended tried={len(claims)} refusals={refusals} welcomed={welcomed}")


def lying_member(host, port, amount, given):
    """Joins with the secret, and then says what is not so, over and over."""
    member = Member(host, port, given, 0)
    say("began" if member.wait_for("round", 60) else "never began")
    cause = {"kind": "worker_failed", "host": "x" * 5_000, "node_rank": -7, "rank": 10**9, "local_rank": -1, "pid": -1,
             "exit_code": 10**9, "signal": 999, "core_dumped": True, "retriable": True, "attempt": 10**9, "ran_ms": -1,
             "message": "\x1b[2J" * 500, "last_stderr": "\x07" * 5_000}
    lies = [{"type": "started", "attempt": 10**9, "term": 0}, {"type": "started", "attempt": -1, "term": 0},
            {"type": "workers_succeeded", "attempt": 10**9, "term": 0}, {"type": "reaped", "attempt": 10**9, "term": 0},
            {"type": "worker_failed", "attempt": 10**9, "term": 0, "cause": cause},
            {"type": "round", "attempt": 3, "term": 0}, {"type": "finish", "exit_status": 0, "why": "all done"},
            {"type": "stop", "attempt": 0, "term": 0, "signal": 9, "why": "go", "final": True, "exit_status": 0}]
    sent = 0
    try:
        for number in range(int(amount)):
            member.send(**lies[number % len(lies)])
            sent += 1
    except OSError:
        pass
    ended = member.wait_for("finish", 5)
    member.connection.close()
    say(f"ended sent={sent} put_out={'yes' if ended else 'closed'}")


def key_updates(host, port, seconds, given):
    """With the secret: new keys without end, and each time the wish for an answer."""
    say("began")
    end, sent = time.monotonic() + seconds, 0
    while True:
        pace.step()
        client = tls_client(host, port, given, "-ign_eof")
        try:
            while time.monotonic() < end and client.poll() is None:
                client.stdin.write(b"K\n")  # s_client's word for it, one of each read().
                client.stdin.flush()
                sent += 1
                time.sleep(0.0005)
        except OSError:
            pass
        client.kill()
        client.communicate()
        if "again" not in given or time.monotonic() >= end:
            break
    say(f"ended sent={sent}")


def after_handshake(host, port, amount, given):
    """With the secret: bytes that nobody has sealed, once both sides have proved it."""
    say("began")
    closed = 0
    for _ in range(int(amount)):
        pace.step()
        listener = socket.create_server(("127.0.0.1", 0))
        client = tls_client("127.0.0.1", listener.getsockname()[1], given, "-quiet")
        inner, outer = listener.accept()[0], connect(host, port)
        answered = False
        while True:
            ready = select.select([inner, outer], [], [], 20)[0]
            if not ready or (inner in ready and answered):
                break
            if outer in ready:
                inner.sendall(outer.recv(65536))
                answered = True
            else:
                outer.sendall(inner.recv(65536))
        outer.sendall(inner.recv(65536) + os.urandom(500))  # Its Finished, and then ours.
        outer.settimeout(20)
        try:
            while outer.recv(65536):
                pass
            closed += 1
        except ConnectionResetError:
            closed += 1
        except OSError:
            pass
        for each in (inner, outer, listener):
            each.close()
        client.kill()
        client.communicate()
    say(f"ended tried={int(amount)} closed={closed}")


ATTACKS = {"tls-shapes": tls_shapes, "impossible": impossible, "lying-member": lying_member,
           "key-updates": key_updates, "after-handshake": after_handshake, "silent": silent, "half-open": half_open, "junk": junk, "slow-tls": slow_tls, "refused": refused,
           "join": join_and, "mute": mute, "spare": spare}


def main():
    plain = [word for word in sys.argv[1:] if "=" not in word]
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    if len(plain) not in (3, 4) or plain[0] not in ATTACKS:
        sys.exit(__doc__)
    if "rate" in given:
        pace.limit(given["rate"])
    amount = plain[3] if len(plain) == 4 else "10"
    kind = plain[0]
    number = int(amount) if kind in ("silent", "half-open", "slow-tls") else float(amount)
    ATTACKS[kind](plain[1], int(plain[2]), number, given)


main()
