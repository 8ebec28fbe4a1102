"""Renders the Helm chart with each file of kubernetes/values and validates the result, and kubernetes/jobs, without a
cluster.

Kinds of Kubernetes are validated against its schemas of two releases, those of operators against the schemas in
kubernetes/check/schemas.json: KEDA 2.16 and the Prometheus operator 0.80 (from cloudcoil's models, Apache-2.0), and the
Gateway API 1.0 (from kubernetes-models, MIT). One misspelt field in each object must be rejected. The rendered objects
are then scanned by checkov, and the alert rules by promtool where it is installed.
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

FOLDER = Path(__file__).parents[1] / "kubernetes"
CHART = FOLDER / "penstock"
RELEASES = ("1.30", "1.37")
TOOLS = Path(sys.executable).parent
# Checks that the chart leaves to its user, or that Penstock does not need.
UNCHECKED = {
    "CKV_K8S_11": "no CPU limit: a throttled server is late for all its streams",
    "CKV_K8S_15": "images built on the node have no registry to pull from",
    "CKV_K8S_21": "the namespace is that of the release",
    "CKV_K8S_43": "the digest of the image is the user's",
}


def main() -> int:
    """Exit status: 0 if everything renders, validates and passes."""
    schemas = json.loads((FOLDER / "check" / "schemas.json").read_text())
    values, jobs = (sorted((FOLDER / name).glob("*.yaml")) for name in ("values", "jobs"))
    found = {path.name: render(yaml.safe_load(path.read_text())) for path in values}
    found |= {path.name: list(yaml.safe_load_all(path.read_text())) for path in jobs}
    for name, objects in found.items():
        for document in objects:
            for release in RELEASES:
                validate(document, release, schemas)
                reject_misspelt(document, release, schemas)
        scan(objects)
        kinds = sorted({document["kind"] for document in objects})
        print(f"{name}: {len(objects)} objects valid for {', '.join(RELEASES)}: {', '.join(kinds)}")
    check_rules()
    return 0


def render(changes: dict) -> list[dict]:
    """The chart's objects with `changes` to its values."""
    values = merge(yaml.safe_load((CHART / "values.yaml").read_text()), changes)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    release = {"Name": "speech", "Namespace": "default"}
    templates = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    request = {
        "templates": templates,
        "data": {"Values": values, "Release": release, "Chart": chart},
        "files": {path.name: path.read_text() for path in CHART.glob("*.yml")},
    }
    command = [TOOLS / "go", "run", FOLDER / "check" / "render.go"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the chart does not render: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def merge(values: dict, changes: dict) -> dict:
    """Values with changes, as Helm merges them: mappings by key, everything else replaced."""
    merged = dict(values)
    for key, change in changes.items():
        known = merged.get(key)
        merged[key] = merge(known, change) if isinstance(known, dict) and isinstance(change, dict) else change
    return merged


def validate(document: dict, release: str, schemas: dict) -> None:
    """Raises an error of `jsonschema` or `kubernetes_validate` if the object does not fit its schema."""
    if (schema := schemas.get(document["kind"])) is not None:
        jsonschema.validate(document, schema)
    else:
        kubernetes_validate.validate(document, release, strict=True)


def reject_misspelt(document: dict, release: str, schemas: dict) -> None:
    """Each mapping of the object with an unknown field must be rejected, so that the schema means something."""
    misspelt = copy.deepcopy(document)
    misspelt["spec"]["replicsa"] = 2
    try:
        validate(misspelt, release, schemas)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
        return
    raise SystemExit(f"{document['kind']} {document['metadata']['name']}: a misspelt field was accepted")


def scan(objects: list[dict]) -> None:
    """checkov's checks of Kubernetes objects, but those that are left out for a reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        options = ["--framework", "kubernetes", "--skip-check", ",".join(UNCHECKED), "--quiet", "--compact"]
        command = [sys.executable, TOOLS / "checkov", "--file", file, "--skip-download", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"checkov: {done.stdout}{done.stderr}")


def check_rules() -> None:
    """The alert rules, which the chart and compose share."""
    if (promtool := shutil.which("promtool")) is None:
        print("alert rules: not run, promtool (Debian's package prometheus) is not installed")
        return
    subprocess.run([promtool, "check", "rules", CHART / "alerts.yml"], check=True)


if __name__ == "__main__":
    sys.exit(main())
