"""Writes the wheel `ddprun`: the launcher on PATH, with its man page and completions. Standard library only.

  make_wheel.py --version V --tag TAG --program FILE --source DIR --out DIR

A wheel is a zip with a list of its files. What lies in NAME.data/scripts goes to the environment's bin/, what lies in
NAME.data/data beneath its root: share/man and share/bash-completion, where man and bash look for them.
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
METADATA = """Metadata-Version: 2.1
Name: ddprun
Version: {version}
Summary: A native launcher for data-parallel jobs, with torchrun's command line and environment
License: Apache-2.0
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

`ddprun --nproc-per-node 2 train.py` starts a job as torchrun does; `ddprun --help` and `man ddprun` tell the rest.
It is one program that needs glibc alone. Jobs of several hosts also open the machine's libssl.so.3 (OpenSSL 3).
"""
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


def main():
    parser = argparse.ArgumentParser()
    for name in ("version", "tag", "program", "source", "out"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    source = pathlib.Path(options.source)
    data, info = f"ddprun-{options.version}.data", f"ddprun-{options.version}.dist-info"
    files = {
        f"{data}/scripts/ddprun": (pathlib.Path(options.program).read_bytes(), True),
        f"{data}/scripts/ddprun-launch": (SECOND_NAME.encode(), True),
        f"{data}/data/share/man/man1/ddprun.1": ((source / "docs/ddprun.1").read_bytes(), False),
        f"{data}/data/share/bash-completion/completions/ddprun": ((source / "completions/ddprun.bash").read_bytes(), False),
        f"{data}/data/share/zsh/site-functions/_ddprun": ((source / "completions/_ddprun").read_bytes(), False),
        f"{info}/METADATA": (METADATA.format(version=options.version).encode(), False),
        f"{info}/WHEEL": (WHEEL.format(tag=options.tag).encode(), False),
        f"{info}/licenses/LICENSE": ((source / "LICENSE").read_bytes(), False),
    }
    path = pathlib.Path(options.out) / f"ddprun-{options.version}-py3-none-{options.tag}.whl"
    write_wheel(path, files, info)
    print(path)


if __name__ == "__main__":
    main()
