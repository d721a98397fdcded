"""The gate that tests/end_to_end/gated_train.cpp asks at each of its phases whether it may go on.

So a job can be struck at a named moment, and not at some time: a worker stands still at its phase until it is let
through, while all else goes on. What the workers say there is the record of the job: who was where when, and the hash
of what each rank held after each step.
"""
import os
import selectors
import socket
import threading
import time
import typing


class Event(typing.NamedTuple):
    when: float  # time.monotonic()
    host: int
    local_rank: int
    pid: int
    attempt: int
    rank: int
    world: int
    phase: str
    step: int
    hash: str

    @property
    def place(self):
        return self.host, self.local_rank


class Gate:
    """A thread answers; all else is called by one other thread."""

    def __init__(self, path):
        self.path = path
        self.changed = threading.Condition()
        self.events = []
        self.held = []  # (event, connection)
        self.holds = None  # Which events are not answered: a function of the event.
        self.selector = selectors.DefaultSelector()
        self.wake_up, self.woken = socket.socketpair()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.woken, selectors.EVENT_READ, lambda _: None)
        self.running = True
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def close(self):
        self.running = False
        self.wake_up.send(b"\0")
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.wake_up.close()
        self.selector.close()
        os.unlink(self.path)

    def serve(self):
        while self.running:
            for key, _ in self.selector.select():
                key.data(key.fileobj)

    def accept(self, listener):
        connection, _ = listener.accept()
        self.selector.register(connection, selectors.EVENT_READ, self.hear)

    def hear(self, connection):
        try:
            text = connection.recv(4096).decode()  # One line: the other end waits for its answer.
        except ConnectionError:
            text = ""
        with self.changed:
            if not text:
                self.selector.unregister(connection)
                connection.close()
                self.held = [each for each in self.held if each[1] is not connection]
            else:
                words = text.split()
                event = Event(time.monotonic(), *map(int, words[:6]), words[6], int(words[7]), words[8])
                self.events.append(event)
                if self.holds and self.holds(event):
                    self.held.append((event, connection))
                else:
                    self.answer(connection)
            self.changed.notify_all()

    @staticmethod
    def answer(connection):
        try:
            connection.send(b"g")
        except OSError:
            pass  # It has died meanwhile.

    def hold(self, which):
        with self.changed:
            self.holds = which

    def release(self):
        """All that are held; nobody is from here on."""
        with self.changed:
            self.holds = None
            for _, connection in self.held:
                self.answer(connection)
            self.held = []

    def wait(self, found, limit_s, check=lambda: None, look_each_s=0.2):
        """What found(self) says, once that is true. `check` may raise, and is asked now and then."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            while not (result := found(self)):
                if time.monotonic() > deadline:
                    return None
                self.changed.wait(look_each_s)
                check()
            return result

    def since(self, moment, **wanted):
        return [event for event in self.events
                if event.when > moment and all(getattr(event, name) == value for name, value in wanted.items())]
