"""Does what arguments.py does, as a program that is a folder."""
import pathlib
import runpy

runpy.run_path(str(pathlib.Path(__file__).parents[1] / "arguments.py"))
