"""Writes the wheels of scripts/package and scripts/package_train. Standard library only.

  make_wheel.py --version V --tag TAG --source DIR --out DIR --program FILE   `ddprun`: the launcher, man page, completions
  make_wheel.py --version V --tag TAG --source DIR --out DIR --tree DIR --torch V   `ddprun-train`: what cmake --install wrote

A wheel is a zip with a list of its files. What lies in NAME.data/scripts goes to the environment's bin/, what lies in
NAME.data/data beneath its root: share/man and share/bash-completion, where man and bash look for them. The rest goes to
site-packages.
"""
import argparse
import base64
import hashlib
import pathlib
import zipfile

# The second name of the launcher. A wheel cannot hold a link, so this program takes the name on its way.
SECOND_NAME = """#!python
import os
import sys

os.execv(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddprun"), ["ddprun-launch", *sys.argv[1:]])
"""
# train lies beside the package torch, whose libraries it finds from there; a program in bin/ could not know where that is.
TRAIN = """#!python
import os
import sys

import ddprun_train

os.execv(os.path.join(ddprun_train.prefix, "bin", "train"), ["train", *sys.argv[1:]])
"""
TRAIN_MODULE = """\"\"\"The trainer and the C++ libraries of ddprun. `python -m ddprun_train` prints where they lie, for CMAKE_PREFIX_PATH.\"\"\"
import os

prefix = os.path.dirname(os.path.abspath(__file__))
"""
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
{requires}Description-Content-Type: text/markdown

{description}
"""
LAUNCHER = {
    "name": "ddprun", "requires": "",
    "summary": "A native launcher for data-parallel jobs, with torchrun's command line and environment",
    "description": "`ddprun --nproc-per-node 2 train.py` starts a job as torchrun does; `ddprun --help` and `man ddprun` tell the "
                   "rest.\nIt is one program that needs glibc alone. Jobs of several hosts also open the machine's OpenSSL (3, 4 or 1.1.1).",
}
TRAINER = {
    "name": "ddprun-train", "requires": "Requires-Dist: torch=={torch}\n",
    "summary": "A ResNet trainer, and DistributedDataParallel for LibTorch as a C++ library",
    "description": "`train` on PATH; `python -m ddprun_train` prints the prefix for find_package(ddprun). It uses the LibTorch of "
                   "the package\ntorch beside it, and of the machine libstdc++, libcrypto.so.3 and libz. `ddprun train ...` starts several.",
}
WHEEL = """Wheel-Version: 1.0
Generator: scripts/package
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""
# Of the epoch of zip: equal inputs give an equal file.
DATE = (1980, 1, 1, 0, 0, 0)


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def write_wheel(path, files, info):
    """`files`: name -> (content, whether it is a program)."""
    lines = [record_line(name, content) for name, (content, _) in files.items()] + [f"{info}/RECORD,,"]
    files = {**files, f"{info}/RECORD": (("\n".join(lines) + "\n").encode(), False)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (content, is_program) in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            wheel.writestr(entry, content)


def launcher_files(options, source, data):
    return {
        f"{data}/scripts/ddprun": (pathlib.Path(options.program).read_bytes(), True),
        f"{data}/scripts/ddprun-launch": (SECOND_NAME.encode(), True),
        f"{data}/data/share/man/man1/ddprun.1": ((source / "docs/ddprun.1").read_bytes(), False),
        f"{data}/data/share/bash-completion/completions/ddprun": ((source / "completions/ddprun.bash").read_bytes(), False),
        f"{data}/data/share/zsh/site-functions/_ddprun": ((source / "completions/_ddprun").read_bytes(), False),
        f"{data}/data/share/fish/vendor_completions.d/ddprun.fish": ((source / "completions/ddprun.fish").read_bytes(), False),
    }


def trainer_files(options, data):
    tree = pathlib.Path(options.tree)
    files = {
        f"{data}/scripts/train": (TRAIN.encode(), True),
        "ddprun_train/__init__.py": (TRAIN_MODULE.encode(), False),
        "ddprun_train/__main__.py": (b"import ddprun_train\n\nprint(ddprun_train.prefix)\n", False),
    }
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        name = path.relative_to(tree).as_posix()
        place = f"{data}/data" if name.startswith("share/") else "ddprun_train"
        files[f"{place}/{name}"] = (path.read_bytes(), name.startswith("bin/"))
    return files


def main():
    parser = argparse.ArgumentParser()
    for name in ("version", "tag", "source", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--program")
    parser.add_argument("--tree")
    parser.add_argument("--torch")
    options = parser.parse_args()
    source = pathlib.Path(options.source)
    told = LAUNCHER if options.program else TRAINER
    wheel_name = told["name"].replace("-", "_")
    data, info = (f"{wheel_name}-{options.version}.{end}" for end in ("data", "dist-info"))
    files = launcher_files(options, source, data) if options.program else trainer_files(options, data)
    requires = told["requires"].format(torch=options.torch)
    metadata = METADATA.format(**{**told, "requires": requires}, version=options.version)
    files[f"{info}/METADATA"] = (metadata.encode(), False)
    files[f"{info}/WHEEL"] = (WHEEL.format(tag=options.tag).encode(), False)
    files[f"{info}/licenses/LICENSE"] = ((source / "LICENSE").read_bytes(), False)
    path = pathlib.Path(options.out) / f"{wheel_name}-{options.version}-py3-none-{options.tag}.whl"
    write_wheel(path, files, info)
    print(path)


if __name__ == "__main__":
    main()
