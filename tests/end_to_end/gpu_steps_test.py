"""Usage: gpu_steps_test.py SOURCE_DIR. The steps of scripts/test --gpu and scripts/bench gpu: what is known when time
ends, and what is said where there is no GPU. No GPU is needed."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "benchmarks"))
sys.dont_write_bytecode = True
import gpu  # noqa: E402
import gpu_checks  # noqa: E402
import gpu_steps  # noqa: E402
from gpu_steps import FAILED, LATE, LEFT_OUT, PASSED, Step  # noqa: E402


class GpuSteps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "results"

    def run_steps(self, *steps, total_s=60):
        return gpu_steps.run(steps, total_s, self.folder, {"command": "a test"}, tell=lambda *_, **__: None)

    def test_a_step_that_fails_or_hangs_takes_along_only_what_needs_it(self):
        child = self.folder.parent / "child"
        results = self.run_steps(
            Step("fails", ["sh", "-c", "echo no luck; exit 3"], 20),
            Step("hangs", ["sh", "-c", f"timeout 999 sleep 999 & echo $! >'{child}'; echo soon; sleep 999"], 2),
            Step("is not there", ["/nonexistent"], 20),
            Step("needs it", ["true"], 20, needs=("fails",)),
            Step("needs none", ["echo", "12.5"], 20, figures=lambda text: {"speed": float(text)}),
            Step("says nonsense", ["echo", "x"], 20, figures=lambda text: {"speed": float(text)}))
        self.assertEqual([r.state for r in results], [FAILED, LATE, FAILED, LEFT_OUT, PASSED, FAILED])
        self.assertIn("exit status 3: no luck", results[0].why)
        self.assertEqual(results[1].why, "2 s: soon")
        left = pathlib.Path(f"/proc/{child.read_text().strip()}/cmdline")  # Reaped, or a zombie without one.
        self.assertFalse(left.exists() and left.read_bytes())
        self.assertEqual(results[3].why, "it needs: fails")
        self.assertEqual(results[4].figures, {"speed": 12.5})

    def test_what_is_known_is_written_after_each_step(self):
        look = ["sh", "-c", f"cp '{self.folder}/results.json' '{self.folder}/seen.json'"]
        self.run_steps(Step("first", ["echo", "7"], 20, figures=lambda text: {"speed": float(text)}),
                       Step("second", look, 20))
        seen = json.loads((self.folder / "seen.json").read_text())
        self.assertEqual([(s["name"], s["state"]) for s in seen["steps"]], [("first", PASSED)])
        table = (self.folder / "results.md").read_text()
        self.assertIn("| first | speed | 7 |", table)
        self.assertIn("| second | passed |", table)

    def test_nothing_begins_when_the_time_is_over(self):
        results = self.run_steps(Step("late", ["true"], 20), total_s=0.5)
        self.assertEqual((results[0].state, results[0].why), (LEFT_OUT, "the 0 s were over"))

    def test_every_need_is_an_earlier_step(self):
        for plan in (gpu.test_plan, gpu.bench_plan):
            names = set()
            for step in plan(gpu.Machine(), self.folder):
                self.assertLessEqual(set(step.needs), names, step.name)
                self.assertNotIn(step.name, names)
                names.add(step.name)

    def test_on_several_gpus_two_workers_have_one_each(self):
        def words(gpus):
            self.addCleanup(setattr, gpu, "gpus_here", gpu.gpus_here)
            gpu.gpus_here = lambda: gpus
            return {step.name: " ".join(map(str, step.argv)) for step in gpu.test_plan(gpu.Machine(), self.folder)}

        one, two = words(1), words(2)
        self.assertEqual(set(two) - set(one), {"no worker has a context on another one's GPU", "one process trains on two GPUs",
                                               "so it does with batch norms over both"})
        shared = {name for name, line in one.items() if "--share-gpu" in line or "NCCL_HOSTID" in line}
        self.assertEqual(len(shared), 6)
        for name in shared:
            self.assertNotIn("--share-gpu", two[name])
            self.assertNotIn("NCCL_HOSTID", two[name])

    def test_the_gpus_of_a_process_are_those_of_all_its_lines(self):
        listed = "41, 0000:1B\n42, 0000:1C\n42, 0000:1B\nno processes\n"
        self.assertEqual(gpu_checks.gpus_of_processes(listed), {"41": {"0000:1B"}, "42": {"0000:1B", "0000:1C"}})

    def test_what_is_named_alone_comes_with_all_that_it_needs(self):
        for plan in (gpu.test_plan, gpu.bench_plan):
            steps = plan(gpu.Machine(), self.folder)
            for named in steps:
                kept = gpu.only(steps, named.name)
                names = {step.name for step in kept}
                self.assertLessEqual({named.name, gpu.GPU}, names)
                for step in kept:
                    self.assertLessEqual(set(step.needs), names, step.name)
        kept = [step.name for step in gpu.only(steps, "nvJPEG")]
        self.assertIn("JPEG files to load", kept)
        self.assertFalse([name for name in kept if name.endswith("by libjpeg")])

    def test_a_run_by_other_kernels_than_its_step_names_fails(self):
        self.folder.mkdir()
        (self.folder / "some.jsonl").write_text(json.dumps({"event": "start", "own_kernels": "fused-norm"}) + "\n")
        self.assertEqual(gpu.by_kernels(self.folder, "some", "fused-norm", len)("four"), 4)
        with self.assertRaisesRegex(ValueError, "used our kernels 'fused-norm', not ''"):
            gpu.by_kernels(self.folder, "some", "", len)("")

    def test_workers_that_do_not_know_how_long_they_wait_fail(self):
        self.folder.mkdir()
        for waits, right in ((0.01, True), (0.0, False), (0.3, False)):
            line = json.dumps({"event": "train", "step_s": 0.2, "exposed_comm_s": waits})
            (self.folder / "some.jsonl").write_text("\n".join([json.dumps({"event": "start"}), *[line] * 6]))
            figures = gpu.with_waits(self.folder, "some", lambda text: {"images/s": float(text)})
            if right:
                self.assertEqual(figures("7"), {"images/s": 7, "ms of a step, waiting": 10})
                continue
            with self.assertRaisesRegex(ValueError, f"says that {waits} s of a step, which takes 0.2 s, are waits"):
                figures("7")

    def test_a_second_run_tells_its_own_results(self):
        """--metrics adds to a file that an older run has written."""
        self.folder.mkdir()

        def run_of(step, scale):
            kernels = "" if "--no-fused-norm" in step.argv else "fused-optimizer fused-norm fused-pool working-copies"
            lines = [{"event": "start", "parameters": int(scale), "own_kernels": kernels}]
            lines += [{"event": "train", "images_per_s": 100 * scale, "host_s": 0.1 * scale, "step_s": 0.2 * scale,
                       "exposed_comm_s": 0.01 * scale}] * 6
            lines += [{"event": "validation", "time": epoch * scale} for epoch in range(4)]
            return lines + [{"event": "end", "best_prec1": 99 + scale / 10}]

        def figures():
            found = {}
            for step in gpu.test_plan(gpu.Machine(), self.folder) + gpu.bench_plan(gpu.Machine(), self.folder):
                words = [str(word) for word in step.argv]
                if step.figures is None or "--metrics" not in words:
                    continue
                with open(words[words.index("--metrics") + 1], "a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in run_of(step, self.scale))
                found[step.name] = step.figures("")
            return found

        parameters, gpu.PARAMETERS = gpu.PARAMETERS, dict.fromkeys(gpu.PARAMETERS, 1)
        self.addCleanup(setattr, gpu, "PARAMETERS", parameters)
        self.scale = 1
        first = figures()
        self.assertIn("an epoch of CIFAR-10, ResNet-18, with crops, flips and evaluation", first)
        self.scale = 2
        gpu.PARAMETERS = dict.fromkeys(gpu.PARAMETERS, 2)
        for name, figure in figures().items():
            for what, value in figure.items():
                expected = {"%": 99.2}.get(what, 2 * first[name][what])
                self.assertAlmostEqual(value, expected, msg=name)

    def test_files_that_a_killed_run_left_do_not_end_the_next_one(self):
        data = self.folder / "cifar"
        data.mkdir(parents=True)
        images, gpu.CIFAR_IMAGES = gpu.CIFAR_IMAGES, (1, 1)
        self.addCleanup(setattr, gpu, "CIFAR_IMAGES", images)
        with self.assertRaises(SystemExit) as end:
            gpu.with_cifar(data, "test", "-f", data / "test_batch.bin")
        self.assertEqual(end.exception.code, 0)
        self.assertFalse(data.exists())

    def test_the_plans_fit_the_time_that_such_a_machine_is_had(self):
        for plan in (gpu.test_plan, gpu.bench_plan):
            first = [step.limit_s for step in plan(gpu.Machine(), self.folder) if "build" in step.name]
            self.assertLessEqual(sum(first), gpu.TOTAL_S * 0.75)

    def test_without_a_gpu_the_end_says_that_nothing_of_it_was_run(self):
        results = [gpu_steps.Result("build", PASSED), gpu_steps.Result(gpu.GPU, FAILED, why="no device")]
        self.assertEqual(gpu.verdict(results), (gpu.NO_GPU_STATUS, "this machine has no GPU that can be used: "
                                                "what needs one was not run, and nothing is known of it"))
        self.assertEqual(gpu.verdict([gpu_steps.Result(gpu.GPU, PASSED)])[0], 0)
        self.assertEqual(gpu.verdict([gpu_steps.Result(gpu.GPU, PASSED), gpu_steps.Result("x", LATE)])[0], 1)

    def test_both_commands_say_what_they_take(self):
        for command in (["test", "--gpu"], ["bench", "gpu"]):
            done = subprocess.run([SOURCE / "scripts" / command[0], *command[1:], "--help"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("--results", done.stdout)


unittest.main()
