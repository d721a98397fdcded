"""torchvision's ResNets and transforms, without the rest of it.

`import torchvision` also imports its operators for detection, and by them torch's compiler: that takes
as long as torch itself, in every process that asks an oracle.
"""

import importlib.util
import sys
import types

_folder = importlib.util.find_spec("torchvision").submodule_search_locations[0]
for _name, _path in (("torchvision", _folder), ("torchvision.models", _folder + "/models")):
    sys.modules[_name] = types.ModuleType(_name)
    sys.modules[_name].__path__ = [_path]

from torchvision import transforms  # noqa: E402
from torchvision.models import resnet as resnets  # noqa: E402
