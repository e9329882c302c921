# ruff: noqa: INP001 - a script, in no package
"""Writes what is generated below deploy/: ``python deploy/generate.py`` (``--check`` compares).

Dashboards come from :mod:`fastvideo.dashboards`, and Kubernetes gets the same dashboards and the
same rules: a list of ConfigMaps to make of the first, a PrometheusRule that holds the second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastvideo.dashboards import all_dashboards, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPLOY: Final = Path(__file__).resolve().parent
DASHBOARDS: Final = "grafana/dashboards"
_BY: Final = "# Written by deploy/generate.py; do not edit."

_CONFIG_MAPS: Final = f"""\
{_BY}
# One ConfigMap for each dashboard, with the label and the folder that Grafana's sidecar reads.
# It stands here, not below kubernetes/, as kustomize reads no file from above its own folder.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
generatorOptions:
  disableNameSuffixHash: true
  labels:
    grafana_dashboard: "1"
    app.kubernetes.io/part-of: fastvideo
  annotations:
    grafana_folder: FastVideo
configMapGenerator:
"""

_RULE: Final = f"""\
{_BY}
# Holds the groups of deploy/prometheus/rules/*.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fastvideo
  labels:
    app.kubernetes.io/part-of: fastvideo
spec:
  groups:
"""


def dashboard_files() -> dict[str, str]:
    """Returns the text of each dashboard's file, by its path below deploy/."""
    return {f"{DASHBOARDS}/{each.uid}.json": to_text(each) for each in all_dashboards()}


def config_maps(paths: Iterable[str]) -> str:
    """Returns the kustomization that makes a ConfigMap of each dashboard.

    Args:
        paths: Of the dashboards, below deploy/.
    """
    entries = []
    for path in map(Path, paths):
        entries += [f"  - name: {path.stem}", "    files:", f"      - dashboards/{path.name}"]
    return _CONFIG_MAPS + "\n".join(entries) + "\n"


def prometheus_rule(rule_files: Iterable[str]) -> str:
    """Returns the PrometheusRule that holds the groups of some rule files, comments and all.

    Args:
        rule_files: Their texts, each with ``groups:`` as its only key.

    Raises:
        ValueError: A file has no line ``groups:``.
    """
    groups = []
    for text in rule_files:
        _, key, lines = f"\n{text}".partition("\ngroups:\n")
        if not key:
            message = "expected a rule file with a line 'groups:' and its groups below it"
            raise ValueError(message)
        groups += [f"  {line}" if line else "" for line in lines.rstrip("\n").split("\n")]
    return _RULE + "\n".join(groups) + "\n"


def generated() -> dict[str, str]:
    """Returns the text of everything that is generated, by its path below deploy/."""
    dashboards = dashboard_files()
    rules = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
    return {
        **dashboards,
        "grafana/kustomization.yaml": config_maps(dashboards),
        "kubernetes/base/prometheus-rule.yaml": prometheus_rule(each.read_text() for each in rules),
    }


def stale(files: dict[str, str]) -> list[str]:
    """Returns the paths, below deploy/, whose files are not what is generated now.

    Args:
        files: What is generated. A dashboard that is not among it is stale too.
    """
    changed = [
        path
        for path, text in files.items()
        if not (DEPLOY / path).is_file() or (DEPLOY / path).read_text() != text
    ]
    there = (f"{DASHBOARDS}/{path.name}" for path in (DEPLOY / DASHBOARDS).glob("*.json"))
    return sorted([*changed, *(path for path in there if path not in files)])


def main() -> int:
    """Writes the files, or with ``--check`` only says which ones are out of date."""
    files = generated()
    paths = stale(files)
    if "--check" in sys.argv[1:]:
        for path in paths:
            sys.stderr.write(f"deploy/{path} is out of date: run python deploy/generate.py\n")
        return 1 if paths else 0
    for path in paths:
        target = DEPLOY / path
        if path in files:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(files[path])
        else:
            target.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
