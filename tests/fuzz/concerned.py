"""Names the fuzz targets that a change concerns: those of whose code a file differs from REVISION.

  concerned.py REVISION      scripts/fuzz --since asks it

A target's code is its file, corpus and dictionary, and all of ours that it includes, however far away: each header, and
the .cpp file of the same name.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
TARGET = re.compile(r"^ddprun_fuzz\((fuzz_\w+) (\w+)", re.MULTILINE)
LIST = "tests/fuzz/CMakeLists.txt"
OF_ALL = re.compile(r"scripts/fuzz$|cmake/|CMakePresets\.json$")  # How they are built and run.


def targets():
    """(name, folder of its corpus) of each."""
    return TARGET.findall((ROOT / LIST).read_text(encoding="utf-8"))


def code_of(target):
    waiting, code = [f"tests/fuzz/{target}.cpp"], set()
    while waiting:
        file = waiting.pop()
        if file in code or not (ROOT / file).is_file():
            continue
        code.add(file)
        waiting += INCLUDE.findall((ROOT / file).read_text(encoding="utf-8"))
        waiting.append(re.sub(r"\.h$", ".cpp", file))
    return code


def concerned(changed, list_lines=()):
    """`list_lines`: those of LIST that differ. One that adds a target concerns that one, any other one all."""
    added = [TARGET.match(line) for line in list_lines]
    if any(map(OF_ALL.match, changed)) or not all(added):
        return [target for target, _ in targets()]
    return [target for target, folder in targets()
            if code_of(target) & changed or any(target == line[1] for line in added)
            or any(file.startswith((f"tests/fuzz/corpus/{folder}/", f"tests/fuzz/{folder}.dict")) for file in changed)]


def changed_since(revision):
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return set(git("diff", "--name-only", revision) + git("ls-files", "--others", "--exclude-standard"))


def list_lines_since(revision):
    difference = subprocess.run(["git", "diff", "--unified=0", revision, "--", LIST], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line[1:] for line in difference.splitlines() if re.match(r"[+-](?![+-])", line)]


if __name__ == "__main__":
    for name in concerned(changed_since(sys.argv[1]), list_lines_since(sys.argv[1])):
        print(name)
