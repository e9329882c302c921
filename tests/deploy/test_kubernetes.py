"""The same rules and dashboards for Kubernetes, built by kustomize, and a pod to scrape."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))

# A ConfigMap holds no more.
LARGEST_BYTES = 1 << 20

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


def load(path: Path) -> dict[str, Any]:
    """A YAML file with one document."""
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def build(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What kustomize makes of a folder below kubernetes/, by kind and name."""
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    objects = list(yaml.safe_load_all(done.stdout))
    built = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(built) == len(objects)
    return built


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The generator of deploy/."""
    spec = importlib.util.spec_from_file_location("deploy_generate", DEPLOY / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base() -> dict[tuple[str, str], dict[str, Any]]:
    """The base, built."""
    return build("base")


def test_generated_files_are_up_to_date() -> None:
    """Dashboards, their ConfigMaps and the PrometheusRule are what the generator writes."""
    command = [sys.executable, "deploy/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_out_of_date_files_are_named_and_rewritten(
    generate: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A changed, a missing and a left-over file are each found, and mended."""
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    monkeypatch.setattr(generate, "DEPLOY", copy)
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert generate.main() == 0
    left_over = copy / "grafana" / "dashboards" / "old.json"
    left_over.write_text("{}")
    rule = copy / "kubernetes" / "base" / "prometheus-rule.yaml"
    rule.unlink()
    listed = copy / "grafana" / "kustomization.yaml"
    listed.write_text(listed.read_text() + "# by hand\n")
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        f"deploy/{path} is out of date: run python deploy/generate.py"
        for path in (
            "grafana/dashboards/old.json",
            "grafana/kustomization.yaml",
            "kubernetes/base/prometheus-rule.yaml",
        )
    ]
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert generate.main() == 0
    assert rule.is_file()
    assert not left_over.exists()
    assert generate.stale(generate.generated()) == []


def test_a_rule_file_without_groups_is_refused(generate: ModuleType) -> None:
    """Text that has no groups would vanish; it is an error instead."""
    with pytest.raises(ValueError, match="groups:"):
        generate.prometheus_rule(["rules: []\n"])


def test_the_rules_of_the_cluster_are_those_of_the_files() -> None:
    """The PrometheusRule holds every group of every rule file and nothing else."""
    rule = load(KUBERNETES / "base" / "prometheus-rule.yaml")
    groups = [group for path in RULES for group in load(path)["groups"]]
    assert groups
    assert rule["spec"] == {"groups": groups}


@needs_kubectl
@pytest.mark.integration
def test_every_dashboard_is_a_config_map_for_the_sidecar(
    base: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Each file is there, whole, small enough, with the label and the folder."""
    files = {path.name: path for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    found: dict[str, str] = {}
    for (kind, _), each in base.items():
        if kind != "ConfigMap":
            continue
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"]["grafana_folder"] == "FastVideo"
        found |= each["data"]
    assert set(found) == set(files)
    for name, text in found.items():
        assert text == files[name].read_text()
        assert json.loads(text)["title"]
        assert len(text.encode()) < LARGEST_BYTES


@needs_kubectl
@pytest.mark.integration
def test_the_overlay_adds_the_label_of_the_release(
    base: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Objects differ from the base's by a label and a namespace; what they select does not."""
    overlay = build("overlays/release-label")
    assert set(overlay) == set(base)
    for key, each in overlay.items():
        assert each["metadata"]["labels"].pop("release") == "kube-prometheus-stack"
        assert each["metadata"].pop("namespace") == "monitoring"
        assert each == base[key]


@needs_kubectl
@pytest.mark.integration
def test_series_keep_rank_and_run(base: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Every endpoint honours labels, and gives the job that the rules and dashboards expect."""
    endpoints = base["PodMonitor", "fastvideo"]["spec"]["podMetricsEndpoints"]
    scrapes = load(DEPLOY / "prometheus" / "prometheus.yml")
    assert len(endpoints) == 8
    for each in endpoints:
        assert each["honorLabels"] is True
        assert each["interval"] == scrapes["global"]["scrape_interval"]
        assert each["scrapeTimeout"] == scrapes["global"]["scrape_timeout"]
        assert {"targetLabel": "job", "replacement": "fastvideo"} in each["relabelings"]
    assert "fastvideo" in {each["job_name"] for each in scrapes["scrape_configs"]}


@needs_kubectl
@pytest.mark.integration
def test_the_example_pod_is_scraped(base: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The pod has the labels that are selected and a port for each rank, in their order."""
    monitor = base["PodMonitor", "fastvideo"]["spec"]
    job = load(KUBERNETES / "examples" / "train-job.yaml")
    pod = job["spec"]["template"]
    selected = monitor["selector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    assert monitor["namespaceSelector"] == {"any": True}
    (container,) = pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {f"metrics-{rank}": 9464 + rank for rank in range(8)}
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == list(ports)
    assert len(ports) == container["resources"]["limits"]["nvidia.com/gpu"]
    environment = {each["name"]: each for each in container["env"]}
    field = environment["FASTVIDEO_METRICS_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "status.podIP"


def test_a_relabelled_pod_label_is_one_that_the_example_has() -> None:
    """The label of the run that `up` gets exists under the name that discovery gives it."""
    monitor = load(KUBERNETES / "base" / "pod-monitor.yaml")
    sources = {
        source
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        for each in endpoint["relabelings"]
        for source in each.get("sourceLabels", ())
    }
    job = load(KUBERNETES / "examples" / "train-job.yaml")
    labels = job["spec"]["template"]["metadata"]["labels"]
    known = {f"__meta_kubernetes_pod_label_{name.replace('-', '_')}" for name in labels}
    assert sources
    assert sources - known == set()


def test_the_values_for_helm_agree_with_the_rest() -> None:
    """Interval, sidecar label, folder and links are those of the base and of prometheus.yml."""
    values = load(KUBERNETES / "helm-values.yaml")
    prometheus = load(DEPLOY / "prometheus" / "prometheus.yml")
    spec = values["prometheus"]["prometheusSpec"]
    assert spec["enableFeatures"] == ["exemplar-storage"]
    assert set(spec["externalLabels"]) == set(prometheus["global"]["external_labels"])
    assert spec["additionalAlertRelabelConfigs"] == prometheus["alerting"]["alert_relabel_configs"]
    sidecar = values["grafana"]["sidecar"]
    options = load(DEPLOY / "grafana" / "kustomization.yaml")["generatorOptions"]
    dashboards = sidecar["dashboards"]
    assert options["labels"][dashboards["label"]] == dashboards["labelValue"]
    assert dashboards["folderAnnotation"] in options["annotations"]
    interval = prometheus["global"]["scrape_interval"]
    assert sidecar["datasources"]["defaultDatasourceScrapeInterval"] == interval
