"""Records what a real torch client and our store say to each other, operation by operation.

  store_capture.py record SERVE_STORE PYTHON   writes captures/torch-VERSION.txt, beside this file
  store_capture.py corpus                      writes tests/fuzz/corpus/ from the captures
  store_capture.py operations PORT             (run by `record`, in PYTHON: the client)

A capture has one paragraph per operation: its call, then lines of bytes in hexadecimal, "->" from
the client and "<-" to it, each with a line below that says what the bytes are.
store_captures_test.cpp replays them; docs/store_protocol.md shows them.
"""
import datetime
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).parent
CAPTURES = HERE / "captures"
CORPUS = HERE.parent / "fuzz" / "corpus"
WIDTH = 100

# Opcode of torch >= 2.2: name, body, answer. k key, v value, i i64, u u32, K keys, P pairs,
# s string, b byte, * a string for each key asked for, q a length and if that is not 0 a string,
# l a list.
OPERATIONS = {
    0: ("VALIDATE", "u", ""), 1: ("SET", "kv", ""), 2: ("COMPARE_SET", "kvv", "s"),
    3: ("GET", "k", "s"), 4: ("ADD", "ki", "i"), 5: ("CHECK", "K", "b"), 6: ("WAIT", "K", "b"),
    7: ("GETNUMKEYS", "", "i"), 8: ("DELETE_KEY", "k", "i"), 9: ("APPEND", "kv", ""),
    10: ("MULTI_GET", "K", "*"), 11: ("MULTI_SET", "P", ""), 12: ("CANCEL_WAIT", "", "b"),
    13: ("PING", "u", "u"), 14: ("QUEUE_PUSH", "kv", ""), 15: ("QUEUE_POP", "k", "q"),
    16: ("QUEUE_LEN", "k", "i"), 17: ("LIST_KEYS", "", "l"), 18: ("BARRIER", "ki", "b"),
}


# --- The client, in an interpreter that has torch ---------------------------------------------


def operations(port):
    import torch.distributed as dist

    def seconds(value):
        return datetime.timedelta(seconds=value)

    def raises(call):
        try:
            call()
        except RuntimeError:
            return
        raise AssertionError("no error was raised")

    def done(name):
        print(name, flush=True)
        sys.stdin.readline()

    store = dist.TCPStore("127.0.0.1", port, 1, False, seconds(20))
    done("TCPStore(host, port, world_size=1, is_master=False)")
    for name, method, call in (
        ("list_keys()", "list_keys", lambda: store.list_keys()),
        ("set('a', 'hi')", "set", lambda: store.set("a", "hi")),
        ("get('a')", "get", lambda: store.get("a")),
        ("set('e', '')", "set", lambda: store.set("e", "")),
        ("add('n', 5)", "add", lambda: store.add("n", 5)),
        ("add('n', -7)", "add", lambda: store.add("n", -7)),
        ("check(['a', 'z'])", "check", lambda: store.check(["a", "z"])),
        ("compare_set('a', 'hi', 'yo')", "compare_set", lambda: store.compare_set("a", "hi", "yo")),
        ("compare_set('a', 'x', 'y'), a is 'yo'", "compare_set",
         lambda: store.compare_set("a", "x", "y")),
        ("compare_set('b', 'x', 'y'), b missing", "compare_set",
         lambda: store.compare_set("b", "x", "y")),
        ("compare_set('b', '', 'y'), b missing", "compare_set",
         lambda: store.compare_set("b", "", "y")),
        ("append('a', '!')", "append", lambda: store.append("a", "!")),
        ("multi_set(['c', 'd'], ['1', '22'])", "multi_set",
         lambda: store.multi_set(["c", "d"], ["1", "22"])),
        ("multi_get(['c', 'd'])", "multi_get", lambda: store.multi_get(["c", "d"])),
        ("wait(['a', 'c'])" if hasattr(store, "append") else "wait(['a', 'n'])", "wait",
         lambda: store.wait(["a", "c" if hasattr(store, "append") else "n"], seconds(10))),
        ("wait(['z'], 50 ms), z missing", "wait",
         lambda: raises(lambda: store.wait(["z"], seconds(0.05)))),
        ("num_keys()", "num_keys", lambda: store.num_keys()),
        ("delete_key('a')", "delete_key", lambda: store.delete_key("a")),
        ("delete_key('a'), a missing", "delete_key", lambda: store.delete_key("a")),
        ("queue_push('q', 'x')", "queue_push", lambda: store.queue_push("q", "x")),
        ("queue_len('q')", "queue_len", lambda: store.queue_len("q")),
        ("queue_pop('q')", "queue_pop", lambda: store.queue_pop("q")),
        ("queue_pop('q', block=False), q empty", "queue_pop",
         lambda: raises(lambda: store.queue_pop("q", False))),
        ("barrier('bar', 1)", "barrier", lambda: store.barrier("bar", 1)),
    ):
        if hasattr(store, method):
            call()
            done(name)


# --- The recorder -----------------------------------------------------------------------------


class Relay:
    """Passes on what a client and the server say, and notes it."""

    def __init__(self, server_port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server_port = server_port
        self.passed = []  # (connection, arrow, bytes)
        self.connections = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.server_port))
            self.connections += 1
            for source, sink, arrow in ((near, far, "->"), (far, near, "<-")):
                threading.Thread(target=self.relay, daemon=True,
                                 args=(source, sink, self.connections, arrow)).start()

    def relay(self, source, sink, connection, arrow):
        while data := source.recv(65536):
            self.passed.append((connection, arrow, data))
            sink.sendall(data)

    def take(self):
        """What passed since the last call, on the first connection; pieces of one way joined."""
        time.sleep(0.1)  # What has no answer must have passed as well; a person waits for this.
        blocks = []
        for connection, arrow, data in self.passed:
            assert connection == 1, "the second connection is not silent"
            if blocks and blocks[-1][0] == arrow:
                blocks[-1] = (arrow, blocks[-1][1] + data)
            else:
                blocks.append((arrow, data))
        self.passed.clear()
        return blocks


class Annotator:
    """Splits bytes into fields and says what each is."""

    def __init__(self, release):
        self.release = release
        self.open = []  # Operations that are not yet answered: (answer, keys asked for).

    def operation(self, opcode):
        if self.release >= (2, 2):
            return OPERATIONS[opcode]
        if self.release < (2, 1) and opcode == 8:
            return OPERATIONS[8]
        return OPERATIONS[opcode + 1]

    def fields(self, arrow, data):
        self.data, self.at, self.out = data, 0, []
        if arrow == "->":
            while self.at < len(data):
                self.command()
        else:
            while self.at < len(data):
                self.answer(*self.open.pop(0))
        return self.out

    def take(self, size, label):
        piece = self.data[self.at:self.at + size]
        assert len(piece) == size, "cut short"
        self.at += size
        self.out.append((piece, label if isinstance(label, str) else label(piece)))
        return piece

    def number(self, size=8):
        return struct.unpack("<q" if size == 8 else "<I",
                             self.take(size, lambda piece: str(int.from_bytes(
                                 piece, "little", signed=size == 8))))[0]

    def string(self):
        size = self.number()
        if size > 0:
            self.take(size, lambda piece: '"' + piece.decode("latin-1") + '"')

    def command(self):
        name, body, answer = self.operation(self.data[self.at])
        self.take(1, name)
        asked = 0
        for field in body:
            if field in "kv":
                self.string()
            elif field == "i":
                self.number()
            elif field == "u":
                self.take(4, "magic" if name == "VALIDATE" else "nonce")
            else:
                asked = self.number()
                for _ in range(asked * (2 if field == "P" else 1)):
                    self.string()
        if name == "CANCEL_WAIT":
            self.open.clear()  # Of a WAIT that is given up there is no other answer.
        if answer:
            self.open.append((answer, asked))

    def answer(self, kind, asked):
        if kind == "i":
            self.number()
        elif kind == "b":
            self.take(1, lambda piece: str(piece[0]))
        elif kind == "u":
            self.take(4, "nonce")
        elif kind == "s":
            self.string()
        elif kind == "q":
            if self.number() > 0:
                self.string()
        else:
            for _ in range(asked if kind == "*" else self.number()):
                self.string()


def lines_of(arrow, fields):
    """Pairs of lines, the fields and what they are, no wider than WIDTH."""
    rows, upper, lower = [], f"  {arrow}", "    "
    for piece, label in fields:
        column = max(len(piece) * 3 - 1, len(label))
        if len(upper) + 2 + column > WIDTH and upper.strip() != arrow:
            rows += [upper.rstrip(), lower.rstrip()]
            upper, lower = f"  {arrow}", "    "
        upper += " " + piece.hex(" ").ljust(column) + " "
        lower += " " + label.ljust(column) + " "
    return rows + [upper.rstrip(), lower.rstrip()]


def record(program, python):
    ask = "import torch; print(torch.__version__)"
    asked = subprocess.run([python, "-W", "ignore", "-c", ask], capture_output=True, text=True,
                           check=True)
    version = asked.stdout.strip().split("+")[0]
    annotator = Annotator(tuple(int(part) for part in version.split(".")[:2]))
    server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    relay = Relay(int(server.stdout.readline()))
    # A process of its own: some of the client's calls keep Python's lock while they wait.
    client = subprocess.Popen([python, "-W", "ignore", __file__, "operations", str(relay.port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    text = []
    for name in client.stdout:
        text.append(name.rstrip())
        for arrow, data in relay.take():
            text += lines_of(arrow, annotator.fields(arrow, data))
        annotator.open.clear()
        client.stdin.write("next\n")
        client.stdin.flush()
    assert client.wait(10) == 0
    second = ", and a second one that says nothing" if relay.connections == 2 else ""
    head = (f"# torch {version}'s client and ddprun's store: one connection{second}.\n"
            "# Recorded by store_capture.py, which says what the lines are.\n")
    CAPTURES.mkdir(exist_ok=True)
    path = CAPTURES / f"torch-{version}.txt"
    path.write_text(head + "\n".join(text) + "\n")
    server.stdin.close()
    assert server.wait(10) == 0
    print(path)


# --- The corpus -------------------------------------------------------------------------------


def sent_by_client(path):
    """[(call, bytes)] of a capture."""
    calls = []
    for line in path.read_text().splitlines():
        if line.startswith("  ->"):
            calls[-1][1] += bytes.fromhex(line[4:])
        elif not line.startswith((" ", "#")):
            calls.append([line, b""])
    return calls


def corpus():
    """One input per call, after the start of its connection; and each capture as a whole."""
    for path in sorted(CAPTURES.glob("torch-*.txt")):
        calls = sent_by_client(path)
        start = calls[0][1]
        inputs = {"all": b"".join(data for _, data in calls)}
        for call, data in calls[1:]:
            name = call.split("(")[0]
            inputs[name] = inputs.get(name, start) + data
        for name, data in inputs.items():
            (CORPUS / "wire" / f"{path.stem}-{name}").write_bytes(data)
        # fuzz_store's script: client 0 sends it all, then client 1, in pieces of at most 255 bytes.
        script = b""
        for client in (0, 1):
            for at in range(0, len(inputs["all"]), 255):
                piece = inputs["all"][at:at + 255]
                script += bytes([client, len(piece)]) + piece
            script += bytes([52 << 2])  # A pause.
        (CORPUS / "store" / path.stem).write_bytes(script)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    elif sys.argv[1] == "corpus":
        corpus()
    else:
        operations(int(sys.argv[2]))
