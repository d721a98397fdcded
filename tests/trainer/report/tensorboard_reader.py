"""Opens a folder in TensorBoard's own reader and prints as JSON what it shows.

  tensorboard_reader.py DIR     {"scalars": {tag: [[step, value], ...]}, "text": {tag: [[step, text], ...]}}
"""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator, event_multiplexer


def read(folder):
    # The multiplexer reads all files of a folder in the order in which TensorBoard does.
    multiplexer = event_multiplexer.EventMultiplexer(
        size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0},
        purge_orphaned_data=True)
    multiplexer.AddRun(folder, "run")
    multiplexer.Reload()
    shown = multiplexer.GetAccumulator("run")
    tags = shown.Tags()
    scalars = {tag: [[event.step, event.value] for event in shown.Scalars(tag)]
               for tag in tags["scalars"]}
    text = {tag: [[event.step, event.tensor_proto.string_val[0].decode()] for event in shown.Tensors(tag)]
            for tag in tags["tensors"]}
    return {"scalars": scalars, "text": text}


print(json.dumps(read(sys.argv[1])))
