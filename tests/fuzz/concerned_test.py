"""A change concerns the fuzz targets that read with the changed code, and no others."""
import unittest

from concerned import ROOT, code_of, concerned, targets

ALL = [target for target, _ in targets()]


class Concerned(unittest.TestCase):
    def test_code_is_followed_through_headers_into_what_they_declare(self):
        self.assertLess({"tests/fuzz/fuzz_store.cpp", "rendezvous/store/store_sessions.cpp", "rendezvous/wire/wire.cpp"}, code_of("fuzz_store"))
        self.assertNotIn("rendezvous/store/store_sessions.cpp", code_of("fuzz_wire"))
        for target in ALL:  # One that reads nothing of ours has lost its way.
            self.assertTrue([file for file in code_of(target) if not file.startswith("tests/")], target)

    def test_a_parser_concerns_those_that_read_with_it(self):
        self.assertEqual(concerned({"rendezvous/wire/wire.cpp"}), ["fuzz_wire", "fuzz_store"])
        self.assertEqual(concerned({"trainer/data/images/png_image.h"}), [t for t in ALL if "trainer/data/images/png_image.cpp" in code_of(t)])
        self.assertIn("fuzz_png", concerned({"trainer/data/images/png_image.h"}))

    def test_so_do_inputs_and_words(self):
        self.assertEqual(concerned({"tests/fuzz/corpus/tar/one"}), ["fuzz_tar"])
        self.assertEqual(concerned({"tests/fuzz/pickle.dict"}), ["fuzz_pickle"])

    def test_a_line_that_adds_a_target_concerns_that_one(self):
        line = "ddprun_fuzz(fuzz_tar tar LINKS ddprun_download)"
        self.assertEqual(concerned({"tests/fuzz/CMakeLists.txt"}, [line]), ["fuzz_tar"])
        self.assertEqual(concerned({"tests/fuzz/CMakeLists.txt"}, [line, "endif()"]), ALL)

    def test_how_they_are_built_concerns_all_and_a_document_none(self):
        self.assertEqual(concerned({"cmake/ddprun.cmake", "README.md"}), ALL)
        self.assertEqual(concerned({"tests/fuzz/CMakeLists.txt"}, ["  add_executable(${name} ${name}.cpp)"]), ALL)
        self.assertEqual(concerned({"README.md"}), [])
        self.assertTrue((ROOT / "README.md").is_file())


if __name__ == "__main__":
    unittest.main()
