"""How long a test waits for what ought to happen, as tests/testing/patience.h has it for those in C++: written for an
idle machine, stretched by how busy this one is."""
import os


def patience(seconds):
    with open("/proc/loadavg") as file:
        words = file.read().split()
    # The average lags a minute behind, the number of runnable tasks is a moment's; the greater counts.
    waiting = max(float(words[0]), float(words[3].split("/")[0])) / (os.cpu_count() or 1)
    return seconds * min(20.0, max(1.0, 1 + waiting)) * float(os.environ.get("DDPRUN_TEST_SLOW", 1))
