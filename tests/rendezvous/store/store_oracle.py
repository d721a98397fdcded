"""Python torch's process groups on our server, and torch's own server for our client.
(tests/end_to_end/store_clients.py checks torch's client, operation by operation.)

  store_oracle.py gloo PROGRAM             serve_store at PROGRAM: process groups, two attempts
  store_oracle.py rank PORT RANK           one rank of such a group
  store_oracle.py serve                    PyTorch's server: prints its port, ends with its input
  store_oracle.py has_barrier              prints "yes" if this torch's server knows BARRIER
  store_oracle.py serve_many COUNT         so many: prints their ports and "all", runs until killed
"""
import datetime
import os
import signal
import subprocess
import sys

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


def serve_many(count):
    stores = [dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
              for _ in range(count)]
    for store in stores:
        print(store.port)
    print("all", flush=True)
    signal.pause()


if __name__ == "__main__":
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "gloo":
        gloo(arguments[0])
    elif mode == "rank":
        rank(int(arguments[0]), int(arguments[1]))
    elif mode == "serve":
        serve()
    elif mode == "has_barrier":
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        print("yes" if version >= (2, 12) else "no")
    elif mode == "serve_many":
        serve_many(int(arguments[0]))
