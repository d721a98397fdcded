"""What a run of `train`, or of any program that writes the same JSON lines, says about its speed."""
import json
import statistics


class NoMetrics(Exception):
    """The file has too little in it; the text says what is missing."""


def read(path):
    lines = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                lines.append(json.loads(line))
                if lines[-1]["event"] == "train":
                    lines[-1]["step"] + lines[-1]["images_per_s"]
            except (ValueError, TypeError, KeyError) as error:
                raise NoMetrics(f"line {number} of its metrics is not as train writes them ({error!r}): "
                                f"{line[:200].strip()}") from None
    return lines


def speed(lines, warmup_steps):
    """Medians over the lines of training steps, without those that reach into the first steps. A line is
    about the steps since the one before it."""
    steps = [line for line in lines if line.get("event") == "train"]
    if not steps:
        raise NoMetrics("no line with \"event\": \"train\"")
    first = next((line.get("resumed_from_step", 0) for line in lines if line.get("event") == "start"), 0)
    before = first
    kept = []
    for line in steps:
        if before - first >= warmup_steps:
            kept.append(line)
        before = line["step"]
    if not kept:
        raise NoMetrics(f"no line of steps after the first {warmup_steps}: run more steps, or lower "
                        "--warmup-steps or --print-freq")
    result = {"images_per_s": statistics.median(line["images_per_s"] for line in kept)}
    for name in ("step_s", "data_s", "exposed_comm_s"):
        values = [line[name] for line in kept if name in line]
        if values:
            result[name] = statistics.median(values)
    return result


def world_size(lines):
    return next((line.get("world_size") for line in lines if line.get("event") == "start"), None)
