"""A real Prometheus and a real Alertmanager, with the configuration that is shipped.

What has to differ on a test's machine is substituted, and nothing else: ports, paths, the address
of the Alertmanager, and time. Rules look at minutes and scrapes come every 15 s; `scale_rules`
divides every duration by one number so that a scenario takes seconds instead.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fastvideo.dashboards.prometheus import Prometheus, PrometheusError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
RULES = ROOT / "deploy" / "prometheus" / "rules"
ALERTMANAGER_CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"

_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"
_RANGE = re.compile(rf"\[(\$\w+|{_DURATION})(?::({_DURATION})?)?\]")
_OFFSET = re.compile(rf"\boffset\s+({_DURATION})")


def free_port() -> int:
    """Returns a port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def scale_duration(text: str, factor: float) -> str:
    """Returns a duration divided by a factor, in milliseconds."""
    return f"{max(1, round(1000 * parse_duration(text) / factor))}ms"


def scale_expression(expr: str, factor: float, seconds: tuple[str, ...] = ()) -> str:
    """Returns an expression whose windows and offsets are divided by a factor.

    Args:
        expr: PromQL.
        factor: What to divide by.
        seconds: Numbers of the expression that are seconds too, such as the ``300`` of "no step
            for 300 s"; each is divided where it stands as a word of its own.
    """

    def scaled_range(match: re.Match[str]) -> str:
        window = match[1] if match[1].startswith("$") else scale_duration(match[1], factor)
        if ":" not in match[0]:
            return f"[{window}]"
        return f"[{window}:{scale_duration(match[2], factor) if match[2] else ''}]"

    expr = _RANGE.sub(scaled_range, expr)
    expr = _OFFSET.sub(lambda match: f"offset {scale_duration(match[1], factor)}", expr)
    for number in seconds:
        expr = re.sub(rf"(?<![\w.]){number}(?![\w.])", f"{float(number) / factor:g}", expr)
    return expr


def scale_rules(
    source: Path, target: Path, factor: float, *, interval: str, seconds: tuple[str, ...] = ()
) -> None:
    """Writes rule files that act ``factor`` times as fast and are otherwise those of ``source``.

    Args:
        source: Directory with rule files.
        target: Directory to write to.
        factor: What every window, offset, ``for`` and ``keep_firing_for`` is divided by.
        interval: How often all groups are evaluated.
        seconds: See `scale_expression`.
    """
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted([*source.glob("*.yaml"), *source.glob("*.yml")]):
        content = yaml.safe_load(file.read_text())
        for group in content["groups"]:
            group["interval"] = interval
            for rule in group["rules"]:
                rule["expr"] = scale_expression(rule["expr"], factor, seconds)
                for key in ("for", "keep_firing_for"):
                    if key in rule:
                        rule[key] = scale_duration(rule[key], factor)
        (target / file.name).write_text(yaml.safe_dump(content, sort_keys=False, width=200))


def scale_dashboard(dashboard: dict[str, Any], factor: float) -> dict[str, Any]:
    """Returns a dashboard whose minimal intervals, windows and offsets are divided by a factor.

    Args:
        dashboard: Its JSON.
        factor: As for `scale_rules`.
    """
    scaled = copy.deepcopy(dashboard)
    for panel in scaled["panels"]:
        for target in [panel, *panel.get("targets", [])]:
            if target.get("interval"):
                target["interval"] = scale_duration(target["interval"], factor)
    for query in [
        *(target for panel in scaled["panels"] for target in panel.get("targets", [])),
        *scaled["annotations"]["list"],
    ]:
        if "expr" in query:
            query["expr"] = scale_expression(query["expr"], factor)
    return scaled


class Server:
    """A program of somebody else that listens on a free port of this machine."""

    def __init__(self, command: list[str], *, port: int, log: Path, ready: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: self._answers(ready), f"{command[0]} to answer", timeout_s=30)
        except AssertionError as error:
            self.close()
            message = f"{error}\n{log.read_text()[-4000:]}"
            raise AssertionError(message) from error

    def _answers(self, path: str) -> bool:
        assert self.process.poll() is None, "it ended by itself"
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LivePrometheus:
    """A real Prometheus with the shipped configuration.

    Args:
        directory: For its data and its configuration.
        interval: Scrape and evaluation interval, instead of the shipped one.
        rules: Directory with rule files; None for the shipped ones.
        alertmanager: ``host:port`` of an Alertmanager; None for none.

    Attributes:
        targets: Directory where target files are looked for.
        client: Asks it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interval: str = "500ms",
        rules: Path | None = None,
        alertmanager: str | None = None,
    ) -> None:
        binary = program("prometheus", "prometheus")
        directory.mkdir(parents=True, exist_ok=True)
        self.targets = directory / "targets"
        self.targets.mkdir(exist_ok=True)
        self.interval_s = parse_duration(interval)
        config = directory / "prometheus.yml"
        content = self._configuration(interval, rules or RULES, alertmanager)
        config.write_text(yaml.safe_dump(content, sort_keys=False))
        port = free_port()
        self.server = Server(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--query.lookback-delta=1m",
            ],
            port=port,
            log=directory / "prometheus.log",
            ready="/-/ready",
        )
        self.client = Prometheus(self.server.url)

    def _configuration(self, interval: str, rules: Path, alertmanager: str | None) -> Any:
        content = yaml.safe_load(CONFIG.read_text())
        content["global"].update(
            scrape_interval=interval, scrape_timeout=interval, evaluation_interval=interval
        )
        content["rule_files"] = [str(rules / "*.yaml"), str(rules / "*.yml")]
        content["alerting"] = content.get("alerting", {})
        content["alerting"]["alertmanagers"] = (
            [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
        )
        ours = [job for job in content["scrape_configs"] if job["job_name"] == "fastvideo"]
        assert len(ours) == 1
        for key in ("scrape_interval", "scrape_timeout"):
            ours[0].pop(key, None)
        ours[0]["file_sd_configs"] = [
            {"files": [f"{self.targets}/*.json"], "refresh_interval": interval}
        ]
        content["scrape_configs"] = ours  # the stack's other programs are not here
        return content

    def add_target(self, address: str, name: str = "recorded") -> None:
        """Lets it scrape one more address."""
        part = self.targets / f".{name}.part"
        part.write_text(json.dumps([{"targets": [address]}]))
        part.rename(self.targets / f"{name}.json")

    def firing(self) -> set[tuple[str, str]]:
        """Returns the alerts that fire now: name, and rank or an empty string."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("rank", ""))
            for alert in self.client.alerts()
            if alert["state"] == "firing"
        }

    def close(self) -> None:
        """Ends it."""
        self.server.close()


class Webhook:
    """A receiver of notifications on a free port of this machine.

    Attributes:
        received: The notifications, in the order they came.
    """

    def __init__(self) -> None:
        received: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Says nothing."""

        self.received = received
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def alerts(self) -> list[dict[str, Any]]:
        """Returns every alert of every notification."""
        return [alert for message in self.received for alert in message["alerts"]]

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class Recorded:
    """Serves texts in the Prometheus format, as targets that no longer exist did.

    Args:
        texts: What a path answers, such as ``/metrics``.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class LiveAlertmanager:
    """A real Alertmanager with the shipped routes, all of whose receivers are one webhook.

    Args:
        directory: For its data and its configuration.
        webhook: URL that every receiver sends to; the receiver's name is the path.
        factor: What the waits of the routes are divided by.
    """

    def __init__(self, directory: Path, webhook: str, *, factor: float) -> None:
        binary = program("prometheus-alertmanager", "prometheus-alertmanager", "alertmanager")
        directory.mkdir(parents=True, exist_ok=True)
        content = yaml.safe_load(ALERTMANAGER_CONFIG.read_text())
        self._scale(content["route"], factor)
        content["receivers"] = [
            {
                "name": receiver["name"],
                "webhook_configs": [
                    {"url": f"{webhook}/{receiver['name']}", "send_resolved": True}
                ],
            }
            for receiver in content["receivers"]
        ]
        content.pop("templates", None)
        config = directory / "alertmanager.yml"
        config.write_text(yaml.safe_dump(content, sort_keys=False))
        port = free_port()
        self.server = Server(
            [
                binary,
                f"--config.file={config}",
                f"--storage.path={directory / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            port=port,
            log=directory / "alertmanager.log",
            ready="/-/ready",
        )
        self.address = f"127.0.0.1:{port}"

    def _scale(self, route: dict[str, Any], factor: float) -> None:
        for key in ("group_wait", "group_interval", "repeat_interval"):
            if key in route:
                route[key] = scale_duration(route[key], factor)
        for child in route.get("routes", ()):
            self._scale(child, factor)

    def close(self) -> None:
        """Ends it."""
        self.server.close()


def program(package: str, *names: str) -> str:
    """Returns the path of a program, or skips the test that needs it."""
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip(f"needs {names[0]}, of Debian's package {package}")


def wait_until(
    condition: Callable[[], object], what: str, *, timeout_s: float, every_s: float = 0.1
) -> None:
    """Waits until something is so.

    Raises:
        AssertionError: It is not so in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
            why = ""
        except PrometheusError as error:
            why = f" ({error})"
        if time.monotonic() > deadline:
            message = f"waited {timeout_s:g} s for {what}{why}"
            raise AssertionError(message)
        time.sleep(every_s)
