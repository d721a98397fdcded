"""Python torch's own TCPStore client against our server, and back.

  store_oracle.py client PORT              every operation of the client, against the server at PORT
  store_oracle.py gloo PROGRAM             serve_store at PROGRAM: process groups, two attempts
  store_oracle.py rank PORT RANK           one rank of such a group
  store_oracle.py serve                    PyTorch's server: prints its port, ends with its input
  store_oracle.py capture PROGRAM          prints the bytes of every operation, for docs/store_protocol.md
"""
import datetime
import os
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist


def seconds(value):
    return datetime.timedelta(seconds=value)


def raises(kinds, call):
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError(f"{call} did not raise")


def connect(port, timeout=20.0):
    return dist.TCPStore("127.0.0.1", port, None, False, timeout=seconds(timeout))


def client(port):
    store = dist.TCPStore("127.0.0.1", port, 1, False, timeout=seconds(20))
    assert store.num_keys() == 1  # init/
    store.set("a", "hi")
    assert store.get("a") == b"hi"
    store.set("empty", "")
    assert store.get("empty") == b""
    assert [store.add("count", n) for n in (1, 2, 3)] == [1, 3, 6]
    assert store.get("count") == b"6"
    assert store.add("count", -10) == -4
    assert store.check(["a", "count"]) and not store.check(["a", "missing"])
    assert store.num_keys() == 4
    assert store.delete_key("a") and not store.delete_key("a")
    assert store.num_keys() == 3

    assert store.compare_set("cas", "wrong", "x") == b"wrong"  # Missing: answered with itself.
    assert not store.check(["cas"])
    assert store.compare_set("cas", "", "first") == b"first"
    assert store.compare_set("cas", "wrong", "x") == b"first"
    assert store.compare_set("cas", "first", "second") == b"second"

    store.append("text", "po")
    store.append("text", "tato")
    assert store.get("text") == b"potato"
    store.multi_set(["m1", "m2", "m3"], ["one", "", "three"])
    assert store.multi_get(["m3", "m1", "m2"]) == [b"three", b"one", b""]

    for _ in range(3):  # A wait that times out leaves the client usable.
        raises(dist.DistStoreError, lambda: store.wait(["never", "a2"], seconds(0.05)))
        assert store.add("count", 0) == -4
    timer = threading.Timer(0.05, lambda: connect(port).set("later", "1"))
    timer.start()
    store.wait(["later", "later"], seconds(10))
    timer.join()

    queue_client(store, port)
    big = os.urandom(9 << 20)  # More than PyTorch's own server takes.
    store.set("big", big)
    assert store.get("big") == big
    assert store.multi_get(["big", "text"]) == [big, b"potato"]
    if hasattr(store, "list_keys"):
        assert "text" in store.list_keys()

    prefixed = dist.PrefixStore("p", store)
    prefixed.set("key", "v")
    assert store.get("p/key") == b"v" and prefixed.get("key") == b"v"
    store.set("word", "x")
    raises(dist.DistNetworkError, lambda: store.add("word", 1))  # Not a number: closed.
    print("client ok")


def queue_client(store, port):
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.check(["q"]) and store.queue_len("q") == 2
    assert store.queue_pop("q") == b"1" and store.queue_pop("q") == b"2"
    raises(dist.QueueEmptyError, lambda: store.queue_pop("q", False))
    assert store.queue_len("q") == 0
    other = store.clone()

    def echo():
        for _ in range(50):
            other.queue_push("back", other.queue_pop("forth"))

    thread = threading.Thread(target=echo)
    thread.start()
    for n in range(50):
        store.queue_push("forth", str(n))
        assert store.queue_pop("back") == str(n).encode()
    thread.join()


def rank(port, number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
                      WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True",
                      GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", timeout=seconds(60))
    tensor = torch.full((1000,), float(number + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(3).all(), tensor
    dist.barrier()
    # No clean end: the next attempt finds what a killed one leaves behind.
    print("rank ok", flush=True)
    os._exit(0)


def gloo(program):
    server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    late = connect(port)
    for _ in range(2):
        ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(port), str(n)])
                 for n in range(2)]
        assert [process.wait(90) for process in ranks] == [0, 0]
        server.stdin.write("attempt\n")
        server.stdin.flush()
        assert server.stdout.readline() == "ok\n"
        raises(dist.DistNetworkError, lambda: late.add("x", 1))  # Of the attempt before.
        late = connect(port)
        assert late.num_keys() == 0
    server.stdin.close()
    assert server.wait(10) == 0
    print("gloo ok")


def serve():
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


class Recorder:
    """A relay between one client and the server that notes what passes."""

    def __init__(self, server_port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server_port = server_port
        self.passed = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.server_port))
        for source, sink, arrow in ((near, far, "->"), (far, near, "<-")):
            threading.Thread(target=self.relay, args=(source, sink, arrow), daemon=True).start()

    def relay(self, source, sink, arrow):
        while data := source.recv(65536):
            self.passed.append((arrow, data))
            sink.sendall(data)

    def show(self, name):
        time.sleep(0.05)  # What has no answer must have passed as well.
        print(name)
        for arrow, data in self.passed:
            print(f"  {arrow} {data.hex(' ')}")
        self.passed.clear()


def capture(program):
    server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    recorder = Recorder(int(server.stdout.readline()))
    # In a process of its own: some of the client's calls keep Python's lock while they wait.
    client = subprocess.Popen([sys.executable, __file__, "operations", str(recorder.port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for name in client.stdout:
        recorder.show(name.rstrip())
        client.stdin.write("next\n")
        client.stdin.flush()
    server.stdin.close()
    assert client.wait(10) == 0 and server.wait(10) == 0


def operations(port):
    def done(name):
        print(name, flush=True)
        sys.stdin.readline()

    store = dist.TCPStore("127.0.0.1", port, 1, False, timeout=seconds(20))
    done("TCPStore(host, port, world_size=1, is_master=False)")
    for name, call in (
        ("set('a', 'hi')", lambda: store.set("a", "hi")),
        ("get('a')", lambda: store.get("a")),
        ("add('n', 5)", lambda: store.add("n", 5)),
        ("check(['a', 'z'])", lambda: store.check(["a", "z"])),
        ("compare_set('a', 'hi', 'yo')", lambda: store.compare_set("a", "hi", "yo")),
        ("compare_set('b', 'x', 'y'), b missing", lambda: store.compare_set("b", "x", "y")),
        ("append('a', '!')", lambda: store.append("a", "!")),
        ("multi_set(['c', 'd'], ['1', '22'])",
         lambda: store.multi_set(["c", "d"], ["1", "22"])),
        ("multi_get(['c', 'd'])", lambda: store.multi_get(["c", "d"])),
        ("wait(['z'], 50 ms), z missing",
         lambda: raises(dist.DistStoreError, lambda: store.wait(["z"], seconds(0.05)))),
        ("num_keys()", store.num_keys),
        ("delete_key('a')", lambda: store.delete_key("a")),
        ("queue_push('q', 'x')", lambda: store.queue_push("q", "x")),
        ("queue_len('q')", lambda: store.queue_len("q")),
        ("queue_pop('q')", lambda: store.queue_pop("q")),
        ("queue_pop('q', block=False), q empty",
         lambda: raises(dist.QueueEmptyError, lambda: store.queue_pop("q", False))),
    ):
        call()
        done(name)


if __name__ == "__main__":
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "client":
        client(int(arguments[0]))
    elif mode == "gloo":
        gloo(arguments[0])
    elif mode == "rank":
        rank(int(arguments[0]), int(arguments[1]))
    elif mode == "serve":
        serve()
    elif mode == "operations":
        operations(int(arguments[0]))
    elif mode == "capture":
        capture(arguments[0])
