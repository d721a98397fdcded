"""Where the loader looks for the libraries of what a build has made: in folders with whole names alone. An empty one in
a list is the current folder, in which a file called libz.so.1 may be anybody's.

  loader_path_test.py BIN_DIR
"""
import pathlib
import re
import subprocess
import sys
import unittest

BIN = pathlib.Path(sys.argv[1])


def loader_folders(file):
    """Of its RPATH and RUNPATH; nothing where it has none."""
    parts = subprocess.run(["readelf", "--dynamic", "--wide", file], check=True, capture_output=True, text=True).stdout
    return [folder for found in re.findall(r"\((?:RPATH|RUNPATH)\) .*\[(.*)\]", parts) for folder in found.split(":")]


class LoaderPath(unittest.TestCase):
    def test_no_library_is_looked_for_in_the_current_folder(self):
        files = [file for file in (BIN / "ddprun", BIN / "train", *BIN.glob("libddprun_*.so")) if file.exists()]
        self.assertTrue(files)
        for file in files:
            for folder in loader_folders(file):
                with self.subTest(file=file.name):
                    self.assertRegex(folder, r"^(/|\$ORIGIN)", loader_folders(file))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
