"""How README.md and docs/ speak, and that what they quote is what the programs print.

  documents_test.py SOURCE_DIR
"""
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
# Those that people read; the figures of docs/measurements have rules of their own.
DOCUMENTS = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
WORDS_MAX = 80
# Filler, and phrases that only sound as if they said something.
EMPTY_WORDS = ("has the manner of", "utilize", "leverage", "seamless", "robust", "state-of-the-art", "cutting-edge",
               "in order to", "it should be noted", "please note", "powerful", "blazing", "world-class")
# Stands for what differs from one time to the next, in messages that a document quotes.
PLACEHOLDER = re.compile(r"\b(?:NAME|HOST|N)\b|\.\.\.")


def paragraphs(text):
    """(line number, words) of running text: neither tables, nor titles, nor commands. A list's item is one."""
    text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    start, lines = 0, []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        apart = not line.strip() or line.lstrip().startswith(("|", "#", "<"))
        if lines and (apart or re.match(r"\s*([-*]|\d+\.) ", line)):
            yield start, " ".join(lines).split()
            lines = []
        if not apart:
            start = start if lines else number
            lines.append(line)


def messages_of_programs():
    """The string literals of the sources; adjacent ones as the compiler joins them."""
    found = []
    for room in ("launcher", "plot", "rendezvous", "worker", "trainer"):
        for path in (SOURCE / room).rglob("*.cpp"):
            text = re.sub(r'"\s*\n\s*(?://[^\n]*\n\s*)*"', "", path.read_text()).replace('\\"', "''")
            text = re.sub(r"\{[^{}\n]{0,12}\}", "\0", text)
            found += [literal.replace("''", '"') for literal in re.findall(r'"([^"\n]*)"', text)]
    return found


def fragments(message):
    """The parts of a quoted message between what differs."""
    parts = [part.strip(" .,;:\"") for part in PLACEHOLDER.split(message)]
    return [part for part in parts if " " in part]


def quoted_messages(text):
    """The backticked words in the first column of the tables whose title says that they are messages."""
    for table in re.findall(r"^\| it says \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            yield re.findall(r"`([^`]+)`", row.split("|")[1])


class Documents(unittest.TestCase):
    def test_what_is_long_or_empty_is_noticed(self):
        text = "# " + "title " * 90 + "\n\n" + "word " * 81 + "\n\n| " + "cell " * 90 + "|\n```\n" + "x " * 90 + "\n```\n- a\n- b c\n"
        self.assertEqual([(start, len(words)) for start, words in paragraphs(text)], [(3, 81), (9, 2), (10, 3)])
        self.assertEqual(fragments('waiting for NAME at NAME, N s of N s: "NAME" is not there'), ["waiting for", "s of", "is not there"])
        self.assertEqual(list(quoted_messages("| it says | b |\n|---|---|\n| `x y`, `z` | `q` |\n")), [["x y", "z"]])

    def test_paragraphs_are_short(self):
        wrong = [f"{path.relative_to(SOURCE)}:{start}: {len(words)} words: {' '.join(words[:8])} ..."
                 for path in DOCUMENTS for start, words in paragraphs(path.read_text()) if len(words) > WORDS_MAX]
        self.assertFalse(wrong, f"longer than {WORDS_MAX} words; split at a thought:\n" + "\n".join(wrong))

    def test_no_words_that_say_nothing(self):
        wrong = [f"{path.relative_to(SOURCE)}: {phrase}" for path in DOCUMENTS
                 for phrase in EMPTY_WORDS if phrase in " ".join(path.read_text().lower().split())]
        self.assertFalse(wrong, "say what is meant:\n" + "\n".join(wrong))

    def test_messages_that_are_explained_are_those_of_the_programs(self):
        literals = messages_of_programs()
        rows = list(quoted_messages((SOURCE / "docs" / "troubleshooting.md").read_text()))
        self.assertGreater(len(rows), 30)
        wrong = []
        for row in rows:
            self.assertTrue(row, "a row without a message")
            for message in row:
                wrong += [part for part in fragments(message) or [message]
                          if not any(part in literal for literal in literals)]
        self.assertFalse(wrong, "no program prints:\n" + "\n".join(wrong))

    def test_every_field_of_a_control_message_is_explained(self):
        source = (SOURCE / "rendezvous" / "control" / "control_message.cpp").read_text()
        fields = set(re.findall(r'\bvisit\.\w+\("(\w+)"', source))
        self.assertGreater(len(fields), 50)
        text = (SOURCE / "docs" / "control_protocol.md").read_text()
        self.assertFalse(sorted(field for field in fields if f"`{field}`" not in text))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
