"""The manifests in examples/kubernetes against the published schemas: those of Kubernetes, which kubernetes-validate carries, and
the models of TrainJob and JobSet, which Kubeflow publishes with its API.

  kubernetes_schema_test.py SOURCE_DIR

The packages come from PyPI, into a folder that goes again; without a network it is skipped.
"""
import pathlib
import subprocess
import sys
import tempfile

# Pinned, so that a new release of theirs breaks nothing here. An older Kubernetes, whose schema wants more, and a newer one.
PACKAGES = ["kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "PyYAML==6.0.3"]
VERSIONS = ["1.31", "1.35"]

CHECK = r'''
import pathlib, sys
import kubernetes_validate, yaml
from kubeflow_trainer_api import models

folder, versions = pathlib.Path(sys.argv[1]), sys.argv[2:]
wrong = []


def of_kubernetes(what, document):
    for version in versions:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except Exception as error:
            wrong.append(f"{what}, Kubernetes {version}: {error}")


def lost(before, after, path=""):
    """Fields that a model does not know, and so has left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after[name], f"{path}.{name}") if name in after else [f"{path}.{name}"]
    elif isinstance(before, list) and isinstance(after, list):
        for index, value in enumerate(before):
            yield from lost(value, after[index], f"{path}[{index}]") if index < len(after) else [f"{path}[{index}]"]
    elif isinstance(before, (dict, list)) and before:
        yield path


def of_model(what, document, model):
    try:
        read = model.from_dict(document)
    except Exception as error:
        return wrong.append(f"{what}: {error}")
    wrong.extend(f"{what}: unknown field {field}" for field in lost(document, read.to_dict()))


def check(what, document):
    kind = document.get("kind")
    if kind == "TrainJob":
        of_model(what, document, models.TrainerV1alpha1TrainJob)
    elif kind == "JobSet":
        of_model(what, document["spec"], models.JobsetV1alpha2JobSetSpec)
        for job in document["spec"]["replicatedJobs"]:
            of_kubernetes(what, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]},
                                 "spec": job["template"]["spec"]})
    else:
        of_kubernetes(what, document)


count = 0
for path in sorted(folder.glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        count += 1
        check(f"{path.name} {document['kind']}", document)
assert count >= 4, f"{count} documents"
if wrong:
    sys.exit("\n".join(wrong))

# What is wrong is noticed, or all of this would say nothing.
for name, field in ((("indexed_job.yaml", 1), "completion"), (("jobset.yaml", 0), "replicatedJob"), (("trainjob.yaml", 0), "trainr")):
    document = list(yaml.safe_load_all((folder / name[0]).read_text()))[name[1]]
    document["spec"][field] = [{"name": "x"}]
    check(name[0], document)
    assert wrong, f"a field {field} in {name[0]} was not noticed"
    wrong.clear()
print(f"{count} documents are as their schemas want them")
'''


def main():
    folder = pathlib.Path(sys.argv[1]) / "examples" / "kubernetes"
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        python = pathlib.Path(place) / "bin" / "python"
        pip = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *PACKAGES],
                             capture_output=True, text=True, timeout=600)
        if pip.returncode != 0:
            print("SKIPPED: pip cannot install " + ", ".join(PACKAGES) + ": " + pip.stderr.strip()[-300:])
            return 0
        return subprocess.run([python, "-c", CHECK, folder, *VERSIONS], timeout=600).returncode


if __name__ == "__main__":
    sys.exit(main())
