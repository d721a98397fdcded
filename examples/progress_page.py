# Shows a Python program's step and loss in ddprun status and top: report(step, "forward", loss).
# Without ddprun it does nothing. Offsets: rendezvous/contract/progress_page.h.
import mmap, os, struct, time

fd, offset = map(int, os.environ.get("DDPRUN_PROGRESS_PAGE", "-1:0").split(":"))
page = mmap.mmap(fd, 4096, offset=offset) if fd >= 0 else bytearray(4096)

def report(step, phase="", loss=float("nan"), images_per_s=0.0):
    struct.pack_into("=dd", page, 64, images_per_s, loss)
    struct.pack_into("=31s", page, 120, phase.encode())
    struct.pack_into("=qq", page, 24, time.monotonic_ns(), step)
