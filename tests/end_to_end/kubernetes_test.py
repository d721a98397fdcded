"""The manifests in examples/kubernetes: what their pods would be given is what ddprun understands.

  kubernetes_test.py SOURCE_DIR DDPRUN

No cluster is asked, and the schemas are in kubernetes_schema_test.py. Each pod's environment is made from its manifest as
the controllers make it, and ddprun --dry-run says what it comes to.
"""
import os
import pathlib
import subprocess
import sys
import unittest

from patience import patience

try:
    import yaml
except ImportError:
    print("SKIPPED: no PyYAML (python3-yaml) for this Python")
    sys.exit(0)

SOURCE, DDPRUN = pathlib.Path(sys.argv[1]).resolve(), os.path.abspath(sys.argv[2])
FOLDER = SOURCE / "examples" / "kubernetes"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# What Trainer v2's torch runtime adds (its plugin's constants), for a TrainJob of two nodes.
TRAINER = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "train-node-0-0.train",
           "PET_MASTER_PORT": "29500"}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def environment_of(variables, index):
    """What the kubelet makes of a container's `env`."""
    result = {}
    for variable in variables:
        if "value" in variable:
            assert isinstance(variable["value"], str), f"{variable['name']} is no text: an API server refuses it"
            result[variable["name"]] = variable["value"]
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            result[variable["name"]] = str(index) if path == INDEX else "0d0c9c8e-uid"
    return result


def plan(variables):
    """ddprun's own words on what it would do in such a pod."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    result = subprocess.run([DDPRUN, "--dry-run", "/bin/true"], env={**clean, **variables}, capture_output=True,
                            text=True, timeout=patience(60))
    assert result.returncode == 0, result.stderr
    return result.stdout


class Manifests(unittest.TestCase):
    def check_pods(self, variables, nodes, address):
        for index in range(nodes):
            pod = environment_of(variables, index) if isinstance(variables, list) else \
                {**variables, "PET_NODE_RANK": str(index)}
            self.assertEqual(pod["PET_MASTER_ADDR"], address)
            # The cluster's names mean nothing here.
            text = plan({**pod, "PET_MASTER_ADDR": "localhost"})
            self.assertIn(f"nodes     {nodes} nodes   (PET_NNODES={nodes})", text)
            self.assertIn(f"node rank: PET_NODE_RANK={index}", text)
            self.assertIn("endpoint  localhost, port 29500", text)
            self.assertIn("this node hosts" if index == 0 else "another node hosts", text)

    def check_pod_template(self, job):
        pod = job["template"]["spec"]
        container = pod["containers"][0]
        self.assertEqual(job["completionMode"], "Indexed")
        self.assertEqual(job["completions"], job["parallelism"], "all nodes have to run at once")
        self.assertEqual(pod["restartPolicy"], "Never")
        self.check_files(pod, container, container)
        return pod, container

    def check_files(self, pod, container, mounting):
        """`mounting`: what has the container's mounts."""
        self.assertGreater(pod["terminationGracePeriodSeconds"], 30, "--shutdown-timeout")
        self.assertEqual(container["command"][0], "ddprun")
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in mounting["volumeMounts"]}
        self.assertEqual(mounts["/dev/shm"]["emptyDir"]["medium"], "Memory")
        (claim,) = documents("claim.yaml")
        for option in ("--data", "--checkpoint-dir"):
            place = pathlib.PurePath(container["args"][container["args"].index(option) + 1])
            volume = [mounts[str(folder)] for folder in place.parents if str(folder) in mounts][0]
            self.assertEqual(volume["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"],
                             f"a pod in another's place has to find {option} again")
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])
        secret = environment_of(container["env"], 0)["DDPRUN_SECRET_FILE"]
        self.assertEqual(mounts[str(pathlib.PurePath(secret).parent)]["secret"]["defaultMode"], 0o400)

    def test_indexed_job(self):
        service, job = documents("indexed_job.yaml")
        name = job["metadata"]["name"]
        pod, container = self.check_pod_template(job["spec"])
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(service["spec"]["selector"], {"job-name": name})
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.check_pods(container["env"], job["spec"]["completions"], f"{name}-0.{pod['subdomain']}")

    def test_exit_codes_that_end_the_job_are_those_that_no_other_try_could_change(self):
        job = documents("indexed_job.yaml")[1]
        rules = job["spec"]["podFailurePolicy"]["rules"]
        final = [rule for rule in rules if rule["action"] == "FailJob"][0]["onExitCodes"]
        self.assertEqual(final["containerName"], job["spec"]["template"]["spec"]["containers"][0]["name"])
        table = (SOURCE / "docs" / "failures.md").read_text().split("## Where a status goes")[1].split("\n## ")[0]
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")]
        told = sorted(int(code) for row in rows[1:] if row[1] == "no" for code in row[0].split(","))
        self.assertEqual(sorted(final["values"]), told)

    def test_a_try_of_all_pods_is_what_counts_and_a_stop_does_not(self):
        spec = documents("indexed_job.yaml")[1]["spec"]
        self.assertEqual(spec["backoffLimit"] % spec["completions"], 0, "a try ends all pods")
        ignored = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
        self.assertIn({"type": "DisruptionTarget", "status": "True"}, ignored[0]["onPodConditions"])
        self.assertEqual(ignored[1]["onExitCodes"]["values"], [75])
        self.assertGreater(spec["activeDeadlineSeconds"], 0, "or a program that always ends with 75 never ends")

    def test_jobset(self):
        (jobset,) = documents("jobset.yaml")
        (replicated,) = jobset["spec"]["replicatedJobs"]
        _, container = self.check_pod_template(replicated["template"]["spec"])
        self.assertTrue(jobset["spec"]["network"]["enableDNSHostnames"])
        name = jobset["metadata"]["name"]
        self.check_pods(container["env"], replicated["template"]["spec"]["completions"],
                        f"{name}-{replicated['name']}-0-0.{name}")

    def test_trainer(self):
        (job,) = documents("trainjob.yaml")
        trainer = job["spec"]["trainer"]
        own = environment_of(trainer["env"], 0)
        # The controller refuses these names of a user's.
        self.assertFalse(set(own) & {*TRAINER, "PET_NODE_RANK"})
        self.assertEqual(str(trainer["numNodes"]), TRAINER["PET_NNODES"])
        (patch,) = job["spec"]["runtimePatches"]
        (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
        (node,) = pod["containers"]
        self.assertEqual((replicated["name"], node["name"]), ("node", "node"), "as the runtime calls them")
        self.check_files(pod, trainer, node)
        self.check_pods({**TRAINER, **own}, trainer["numNodes"], TRAINER["PET_MASTER_ADDR"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
