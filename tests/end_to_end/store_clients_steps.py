"""Every store operation that this interpreter's torch has, against the store at PORT.

  store_clients_steps.py exercise PORT   prints one JSON list [step, outcome] a line
  store_clients_steps.py serve           this torch's own server: prints its port, ends with
                                         its input

An outcome is "ok", "not in this torch", or what went wrong. store_clients.py starts both.
"""
import datetime
import json
import os
import sys
import traceback
import warnings

from patience import patience

warnings.filterwarnings("ignore")
import torch.distributed as dist  # noqa: E402

PORT = 0
CLIENTS = 20


def seconds(value):
    """For a wait that is to run out."""
    return datetime.timedelta(seconds=value)


def within(value):
    """For a wait for what ought to come."""
    return seconds(patience(value))


def connect(world_size=None):
    return dist.TCPStore("127.0.0.1", PORT, world_size, False, within(30))


def equal(actual, wanted):
    if actual != wanted:
        raise AssertionError(f"{actual!r} instead of {wanted!r}")


def raises(call):
    try:
        call()
    except RuntimeError:  # What every torch raises: before 2.4 itself, later classes made of it.
        return
    raise AssertionError("no error was raised")


def in_children(count, work):
    """Runs work(number) in `count` processes at once. Returns a function that waits for them."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                work(number)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)

    def finish():
        equal([os.waitpid(child, 0)[1] for child in children], [0] * count)

    return finish


def connections():
    """How many connections to the store this process has."""
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    with open("/proc/self/net/tcp") as table4, open("/proc/self/net/tcp6") as table6:
        rows = [line.split() for line in list(table4)[1:] + list(table6)[1:]]
    return sum(row[2].endswith(f":{PORT:04X}") and row[3] == "01" and f"socket:[{row[9]}]" in mine
               for row in rows)


def start_up(store):
    equal(store.num_keys(), 1)  # init/, which the constructor has added to.
    # Torch 1.13 and 2.0 have a second connection, which says nothing for ever.
    equal(connections(), 1 if hasattr(store, "append") else 2)


def set_get(store):
    store.set("a", "hi")
    equal(store.get("a"), b"hi")
    store.set("a", "")
    equal(store.get("a"), b"")
    store.set("a", bytes(range(256)).decode("latin-1"))
    equal(store.get("a"), bytes(range(256)).decode("latin-1").encode())


def add(store):
    equal([store.add("n", delta) for delta in (1, 2, 3)], [1, 3, 6])
    equal(store.get("n"), b"6")
    equal(store.add("n", -10), -4)
    store.set("n", " 12abc")
    equal(store.add("n", 1), 13)


def compare_set(store):
    equal(store.compare_set("cas", "wrong", "x"), b"wrong")  # Missing: answered with itself.
    equal(store.compare_set("cas", "", "first"), b"first")
    equal(store.compare_set("cas", "wrong", "x"), b"first")
    equal(store.compare_set("cas", "first", "second"), b"second")
    equal(store.get("cas"), b"second")


def delete_num_keys(store):
    before = store.num_keys()
    store.set("d1", "1")
    store.add("d2", 1)
    equal(store.num_keys(), before + 2)
    equal(store.delete_key("d1"), True)
    equal(store.delete_key("d1"), False)
    equal(store.num_keys(), before + 1)
    store.set("d1", "again")
    equal(store.get("d1"), b"again")


def check(store):
    store.set("c1", "1")
    equal(store.check(["c1"]), True)
    equal(store.check(["c1", "c2"]), False)
    equal(store.check([]), True)


def wait(store):
    store.set("w1", "1")
    store.wait(["w1"], within(10))
    store.wait(["w1", "w1"], within(10))
    finish = in_children(1, lambda number: connect().set("w2", "late"))
    store.wait(["w2", "w1"], within(20))
    finish()
    equal(store.get("w2"), b"late")


def timeout_then_use(store):
    other = connect()
    for turn in range(3):
        raises(lambda: store.wait([f"never{turn}", "a"], seconds(0.05)))
        equal(store.add("t", 1), turn + 1)
        other.set(f"never{turn}", "1")  # What was waited for comes too late.
        equal(other.add("t", 0), turn + 1)
        equal(store.add("t", 0), turn + 1)
        # Torch 1.13's short timeout is still in force here.
        equal(store.delete_key(f"never{turn}"), True)
        raises(lambda: store.wait([f"never{turn}"], seconds(0.05)))
        equal(store.delete_key(f"never{turn}"), False)
    store.set_timeout(seconds(0.05))
    raises(lambda: store.get("never"))
    store.set_timeout(within(30))
    equal(store.add("t", 0), 3)


def append(store):
    store.append("text", "po")
    store.append("text", "tato")
    equal(store.get("text"), b"potato")


def multi(store):
    store.multi_set(["m1", "m2", "m3"], ["one", "", "three"])
    equal(store.multi_get(["m3", "m1", "m2"]), [b"three", b"one", b""])
    keys = [f"many{i}" for i in range(2000)]
    store.multi_set(keys, keys)
    equal(store.multi_get(keys), [key.encode() for key in keys])


def large_value(store):
    value = "0123456789abcdef" * (4 << 16)
    store.set("large", value)
    equal(store.get("large") == value.encode(), True)


def over_torch_limit(store):
    value = "0123456789abcdef" * (10 << 16)  # 10 MiB; torch's own limit is 8.
    store.set("huge", value)
    equal(store.get("huge") == value.encode(), True)


def queues(store):
    store.queue_push("q", "1")
    store.queue_push("q", "")
    equal(store.queue_len("q"), 2)
    equal(store.check(["q"]), True)
    equal(store.queue_pop("q"), b"1")
    equal(store.queue_pop("q"), b"")
    raises(lambda: store.queue_pop("q", False))
    equal(store.queue_len("q"), 0)

    def echo(number):
        other = connect()
        for _ in range(50):
            other.queue_push("back", other.queue_pop("forth"))

    finish = in_children(1, echo)
    for turn in range(50):
        store.queue_push("forth", str(turn))
        equal(store.queue_pop("back"), str(turn).encode())
    finish()


def clone(store):
    store.set("shared", "1")
    equal(store.clone().get("shared"), b"1")


def list_keys(store):
    store.set("listed", "1")
    equal("listed" in store.list_keys(), True)
    equal("init/" in store.list_keys(), False)


def barrier(store):
    store.barrier("alone", 1)
    finish = in_children(3, lambda number: connect().barrier("four", 4))
    store.barrier("four", 4, within(20))
    finish()
    equal(store.get("four"), b"4")
    raises(lambda: store.barrier("incomplete", 2, seconds(0.05)))
    equal(store.add("incomplete", 0), 1)


def prefix(store):
    inner = dist.PrefixStore("p", store)
    nested = dist.PrefixStore("deep", inner)
    inner.set("key", "v")
    equal(store.get("p/key"), b"v")
    nested.set("key", "w")
    equal(store.get("p/deep/key"), b"w")
    equal(nested.add("n", 2), 2)
    equal(inner.compare_set("key", "v", "x"), b"x")
    inner.wait(["key", "deep/n"], within(10))
    equal(inner.delete_key("key"), True)
    if hasattr(store, "append"):
        nested.append("key", "!")
        nested.multi_set(["m"], ["1"])
        equal(nested.multi_get(["key", "m"]), [b"w!", b"1"])
    if hasattr(store, "queue_push"):
        nested.queue_push("q", "1")
        equal(nested.queue_len("q"), 1)
        equal(nested.queue_pop("q"), b"1")


def twenty_clients(store):
    def rank(number):
        mine = connect(world_size=1)
        mine.add("joined", 1)
        mine.wait(["go"], within(30))
        equal(mine.get("go"), b"now")
        mine.set(f"rank{number}", str(number))
        mine.wait([f"rank{i}" for i in range(CLIENTS)], within(30))
        equal(mine.get(f"rank{(number + 1) % CLIENTS}"), str((number + 1) % CLIENTS).encode())
        if hasattr(store, "barrier"):
            mine.barrier("all", CLIENTS)
        if hasattr(store, "queue_push"):
            mine.set("worked" + mine.queue_pop("work").decode(), "1")
        mine.add("done", 1)

    finish = in_children(CLIENTS, rank)
    while store.add("joined", 0) < CLIENTS:
        pass
    store.set("go", "now")
    if hasattr(store, "queue_push"):
        for number in range(CLIENTS):
            store.queue_push("work", str(number))
        store.wait([f"worked{i}" for i in range(CLIENTS)], within(30))
    finish()
    equal(store.add("done", 0), CLIENTS)


def still_connected(store):
    equal(store.add("alive", 1), 1)
    equal(connections(), 1 if hasattr(store, "append") else 2)


def add_on_text(store):
    # Last: both servers answer it by closing the connection.
    other = connect()
    other.set("word", "x")
    raises(lambda: other.add("word", 1))
    equal(store.get("word"), b"x")


# A step, and the method without which a torch does not have it.
STEPS = (
    (start_up, "set"), (set_get, "set"), (add, "add"), (compare_set, "compare_set"),
    (delete_num_keys, "delete_key"), (check, "check"), (wait, "wait"), (append, "append"),
    (multi, "multi_get"), (large_value, "set"), (over_torch_limit, "set"), (queues, "queue_push"),
    (clone, "clone"), (list_keys, "list_keys"), (barrier, "barrier"), (prefix, "set"),
    (twenty_clients, "set"), (still_connected, "set"), (add_on_text, "set"),
    (timeout_then_use, "wait"),
)


def exercise():
    store = connect(world_size=1)
    for step, needs in STEPS:
        outcome = "ok"
        if not hasattr(store, needs):
            outcome = "not in this torch"
        else:
            try:
                step(store)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
                store = connect()  # The old connection may be out of step.
        print(json.dumps([step.__name__, outcome]), flush=True)


def serve():
    store = dist.TCPStore("127.0.0.1", 0, None, True, within(30), wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        PORT = int(sys.argv[2])
        exercise()
