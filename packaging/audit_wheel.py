"""Prints the platform tag that a wheel's symbols allow. `audit_wheel.py WHEEL [LIBRARY ...]`; needs auditwheel.

LIBRARY: what others bring, such as the wheels that this one requires; wildcards. `auditwheel show` takes no such list, and
finds nothing but `linux` for a wheel that uses the libraries of torch. Any other library that a platform with the tag need
not have ends it with 1 and a message.
"""
import fnmatch
import pathlib
import sys

from auditwheel.wheel_abi import analyze_wheel_abi
from auditwheel.wheeltools import get_wheel_architecture, get_wheel_libc


def audit(wheel, brought):
    libc, architecture = get_wheel_libc(wheel.name), get_wheel_architecture(wheel.name)
    found = analyze_wheel_abi(libc, architecture, wheel, frozenset(brought), disable_isa_ext_check=False, allow_graft=False)
    tag = found.sym_policy.name
    missing = [name for name in found.external_refs[tag].libs if not any(fnmatch.fnmatch(name, each) for each in brought)]
    return tag, sorted(missing), found


def main():
    wheel, brought = pathlib.Path(sys.argv[1]), sys.argv[2:]
    tag, missing, found = audit(wheel, brought)
    if missing:
        sys.exit(f"audit_wheel: {wheel.name} needs {', '.join(missing)}, which a platform {tag} need not have: carry them, or name them")
    if tag.startswith("linux"):
        newest = {library: sorted(versions) for library, versions in found.versioned_symbols.items()}
        sys.exit(f"audit_wheel: {wheel.name} needs symbols that no tag allows: {newest}")
    print(tag)


if __name__ == "__main__":
    main()
