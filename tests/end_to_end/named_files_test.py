"""What documents and comments name is there: files, folders, programs, options, and sections of documents.

  named_files_test.py SOURCE_DIR

Files move, and a sentence that names one does not follow by itself.
"""
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
FOLDERS = ("benchmarks", "cmake", "command_line", "completions", "data/mnist", "docs", "examples", "launcher", "packaging", "plot", "rendezvous",
           "scripts", "tests", "trainer", "worker")
# Files of others: of the system, of libraries, of an installed package, of a reader, and places that stand for any.
FOREIGN = re.compile(r"^build_info\.h$|(^|/)(torch|linux|tensorflow|tensorboard|nccl)/|^(torch|mpi|nccl|unistd|CUDAStream)\.h$"
                     r"|^TorchConfig\.cmake$|^cmake/ddprun/$|(^|/)(my_training|train|script|hello|x)\.py$|^scaling\.md$|NAME|^a(_test)?\.cpp$")
PATH = re.compile(r"(?<![\w./-])(?:" + "|".join(FOLDERS) + r")/[\w./*-]*[\w*/]")
NAMED = re.compile(r"(?<![\w./<-])((?:[\w-]+/)*[\w-]+\.(?:h|cpp|py|md|cmake))\b(?!\()")
COMMENT = {".h": "//", ".cpp": "//", ".cu": "//", ".py": "#", ".cmake": "#", ".txt": "#", "": "#", ".sh": "#", ".sbatch": "#"}


def files_of_the_tree():
    found = [path for path in SOURCE.iterdir() if path.is_file()]
    for folder in (*FOLDERS, ".ci"):
        found += [path for path in (SOURCE / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return found


TREE = files_of_the_tree()
NAMES = {path.relative_to(SOURCE).as_posix() for path in TREE}
FOLDERS_OF_NAMES = {parent.as_posix() for name in NAMES for parent in pathlib.PurePath(name).parents}
ENDS = {"/".join(pathlib.PurePath(name).parts[first:]) for name in NAMES for first in range(name.count("/") + 1)}
DOCUMENTS = [path for path in TREE if path.suffix == ".md" and "corpus" not in path.parts]
TARGETS = {name for path in TREE if path.name == "CMakeLists.txt"
           for name in re.findall(r"(?:add_executable|ddprun_test|ddprun_fuzz)\(\s*(\w+)", path.read_text())}


def is_there(name):
    """A path from the root; with * at least one file must fit, and a program's source counts for the program."""
    name = name.rstrip("/")
    if "*" in name:
        return any(pathlib.PurePath(file).match(name) for file in NAMES | FOLDERS_OF_NAMES)
    return name in NAMES or name in FOLDERS_OF_NAMES or name + ".h" in NAMES or name + ".cpp" in NAMES


def missing_names(words, beside=None):
    """What `words` name and the tree lacks; `beside` is a folder in which it may be as well."""
    words = re.sub(r"\w+://\S+|\bbuild\S*/bin/\S*", "", words)
    wrong = [name for name in PATH.findall(words) if not is_there(name) and not (beside and (beside / name).exists())]
    wrong += [name for name in NAMED.findall(words) if name not in ENDS]
    return [name for name in dict.fromkeys(wrong) if not FOREIGN.search(name)]


def anchors(path):
    """Sections of a document as GitHub names them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def comments(path):
    """(line number, text) of the comments of a source file; of Python also its strings over several lines."""
    mark = COMMENT[path.suffix]
    inside = False
    for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
        if path.suffix == ".py" and line.count('"""') % 2 == 1:
            inside = not inside
            yield number, line
        elif inside:
            yield number, line
        elif re.search(rf"(^|\s){mark}", line):
            yield number, re.split(rf"(?:^|\s){mark}", line, maxsplit=1)[1]


def of_ours(path):
    """A document's words, less those on other launchers: the first column of a page on how to come from there."""
    text = path.read_text()
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if path.name == "from_other_launchers.md" else text


def quoted(text):
    """(line number, words) of what a document sets in backticks, and of its blocks of commands."""
    block = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            block = not block
        elif block:
            yield number, line
        else:
            for words in re.findall(r"`([^`]+)`", line):
                yield number, words


class NamedFiles(unittest.TestCase):
    def test_what_moved_is_noticed(self):
        self.assertEqual(missing_names("see scripts/bench, worker/torch/ and store.h, tests/**/named_files_test.py"), [])
        self.assertEqual(missing_names("rendezvous/store_sessions, then launcher/options.cpp and gone_with_it.h"),
                         ["rendezvous/store_sessions", "launcher/options.cpp", "gone_with_it.h"])
        self.assertEqual(missing_names("<sys/gone.h>, https://example.org/docs/gone.md, torch/gone.h"), [])
        self.assertIn("what-a-server-can-win", anchors(SOURCE / "docs" / "measurements" / "store.md"))
        self.assertEqual(list(quoted("a `b` c\n```sh\nd\n```\n`e`")), [(1, "b"), (3, "d"), (5, "e")])

    def expect_none(self, wrong):
        self.assertFalse(wrong, "named, but not there:\n" + "\n".join(wrong))

    def test_links_of_documents_lead_somewhere(self):
        wrong = []
        for path in DOCUMENTS:
            for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, section = target.partition("#")
                file = (path.parent / name).resolve() if name else path
                if not file.exists():
                    wrong.append(f"{path.relative_to(SOURCE)}: {target}")
                elif section and section not in anchors(file):
                    wrong.append(f"{path.relative_to(SOURCE)}: {target}: {file.name} has no such section")
        self.expect_none(wrong)

    def test_files_and_programs_that_documents_name_are_there(self):
        wrong = []
        for path in DOCUMENTS:
            for number, words in quoted(path.read_text()):
                missing = missing_names(words, beside=path.parent)
                missing += [f"build/bin/{name}" for name in re.findall(r"\bbuild/bin/(\w+)", words) if name not in TARGETS]
                wrong += [f"{path.relative_to(SOURCE)}:{number}: {name}" for name in missing]
        self.expect_none(wrong)

    def test_options_that_documents_name_are_those_of_a_program(self):
        places = [path for path in TREE if path.parent.name in ("options", "doctor", "scripts", "benchmarks") and path.suffix != ".h"
                  or path.parent == SOURCE / "trainer" or path.name == "watch_command.cpp"]
        source = "\n".join(path.read_text() for path in places)
        known = set(re.findall(r"--([a-z][a-z0-9-]+)", source)) | set(re.findall(r'\{"([a-z0-9-]+)", ', source))
        # Of cmake, tensorboard, docker and kubectl; of a reader's own program; an abbreviation.
        known |= {"install", "component", "prefix", "logdir", "build-arg", "shm-size", "ipc", "gpus", "from-literal", "my-option", "nproc"}
        wrong = [f"{path.relative_to(SOURCE)}: --{name}" for path in DOCUMENTS
                 for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]+)", of_ours(path))
                 if name.replace("_", "-") not in known]
        self.assertGreater(len(known), 150)
        self.expect_none(wrong)

    def test_files_that_comments_name_are_there(self):
        wrong = []
        for path in TREE:
            if path.suffix not in COMMENT or "corpus" in path.parts or path.parts[-2] == "mnist" or path.name == pathlib.Path(__file__).name:
                continue
            for number, words in comments(path):
                wrong += [f"{path.relative_to(SOURCE)}:{number}: {name}" for name in missing_names(words)]
        self.expect_none(wrong)


    def test_the_readme_has_a_line_for_every_room(self):
        tree = (SOURCE / "README.md").read_text().partition("## The tree")[2].partition("\n## ")[0]
        lines = set(re.findall(r"`([\w/.]+)/`", "\n".join(line.split("|")[1] for line in tree.split("\n") if "|" in line)))
        rooms = {pathlib.PurePath(name).parent.as_posix() for name in NAMES
                 if name.startswith(("launcher/", "rendezvous/", "worker/", "trainer/"))}
        rooms |= {path.name for path in SOURCE.iterdir() if path.name in FOLDERS}
        self.assertEqual(rooms - lines, set(), "README.md's table of the tree lacks them")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
