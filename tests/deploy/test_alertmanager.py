"""The routes of Alertmanager: who hears of what, and what is held back."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOY = Path(__file__).parents[2] / "deploy"
SHIPPED = DEPLOY / "alertmanager" / "alertmanager.yml"
ALERTS: dict[str, str] = {
    rule["alert"]: rule["labels"]["severity"]
    for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
DEADLINE_S = 60.0

_BLOCK = re.compile(r"^    # (\w+_configs):\n((?:    #   .*\n)+)", re.MULTILINE)


def amtool(*arguments: str | Path) -> str:
    """Runs amtool, which has to be content; returns what it prints."""
    binary = shutil.which("amtool")
    if binary is None:
        pytest.skip("needs amtool, in Debian's package prometheus-alertmanager")
    done = subprocess.run(
        [binary, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def receiver_blocks() -> list[str]:
    """Returns the examples that the shipped file has under its receivers, as they stand there."""
    return [found[0] for found in _BLOCK.finditer(SHIPPED.read_text())]


def without_marks(text: str, block: str) -> str:
    """Takes the comment marks from one block of a configuration, as its first lines say."""
    return text.replace(block, re.sub(r"^    # ", "    ", block, flags=re.MULTILINE), 1)


@pytest.mark.integration
def test_configuration_is_valid() -> None:
    """Amtool takes the shipped file."""
    assert "SUCCESS" in amtool("check-config", SHIPPED)


def test_nothing_is_sent_before_somebody_says_where() -> None:
    """As shipped no receiver sends anything, and nothing secret stands in the file."""
    content = yaml.safe_load(SHIPPED.read_text())
    assert content["receivers"] == [{"name": "page"}, {"name": "warning"}, {"name": "info"}]
    assert "global" not in content
    for key in re.findall(r"(\w*(?:key|password|api_url|token|secret)\w*):", SHIPPED.read_text()):
        assert key.endswith("_file")


@pytest.mark.integration
@pytest.mark.parametrize("index", range(5))
def test_examples_of_receivers_are_valid(index: int, tmp_path: Path) -> None:
    """Each block works once its comment marks are gone."""
    blocks = receiver_blocks()
    assert len(blocks) == 5
    path = tmp_path / "alertmanager.yml"
    path.write_text(without_marks(SHIPPED.read_text(), blocks[index]))
    amtool("check-config", path)
    receivers = yaml.safe_load(path.read_text())["receivers"]
    assert sum(len(receiver) - 1 for receiver in receivers) == 1


def test_secrets_are_ignored_by_git() -> None:
    """What is put beside the configuration for it to read is not committed."""
    for name in re.findall(r"_file: (\S+)", SHIPPED.read_text()):
        assert name.startswith("/etc/alertmanager/secrets/")
    ignored = (DEPLOY / "alertmanager" / "secrets" / ".gitignore").read_text().splitlines()
    assert "*" in ignored
    assert "!.gitignore" in ignored


@pytest.mark.integration
@pytest.mark.parametrize("name", ALERTS)
def test_alerts_go_to_the_receiver_of_their_severity(name: str) -> None:
    """Each alert of the rules is routed by its severity."""
    said = amtool(
        "config",
        "routes",
        "test",
        f"--config.file={SHIPPED}",
        f"--verify.receivers={ALERTS[name]}",
        f"alertname={name}",
        f"severity={ALERTS[name]}",
        "run=a",
    )
    assert said.split() == [ALERTS[name]]


@pytest.mark.integration
def test_what_has_no_severity_is_not_lost() -> None:
    """An alert of somebody else's rules goes to the receiver of warnings."""
    said = amtool("config", "routes", "test", f"--config.file={SHIPPED}", "alertname=Other")
    assert said.split() == ["warning"]


def test_inhibition_names_alerts_that_exist_within_one_run() -> None:
    """Each rule of inhibition is about one run, and its patterns match alerts of the rules."""
    rules = yaml.safe_load(SHIPPED.read_text())["inhibit_rules"]
    for rule in rules:
        assert rule["equal"] == ["run"]
        sides = [named(rule[side]) for side in ("source_matchers", "target_matchers")]
        assert all(sides)
        assert not sides[0] & sides[1], "an alert that inhibits itself is never heard of"
    heard = {name for name, severity in ALERTS.items() if severity == "page"}
    held = set().union(*(named(rule["target_matchers"]) for rule in rules))
    assert heard - held == {"FastVideoRankMissing", "FastVideoNonfiniteLoss"}


def named(matchers: list[str]) -> set[str]:
    """Returns the alerts that matchers match; each alternative of a pattern has to match one."""
    (matcher,) = matchers
    found = re.fullmatch(r'alertname=(~?)"(.*)"', matcher)
    assert found is not None
    alternatives = re.search(r"\((.*)\)", found[2])
    names = {f"FastVideo{each}" for each in alternatives[1].split("|")} if alternatives else set()
    matched = {name for name in ALERTS if re.fullmatch(found[2], name)}
    assert names <= matched
    return matched


class Alertmanager:
    """An Alertmanager with the shipped configuration, and somebody who receives.

    Args:
        directory: Where it keeps what it keeps.
        binary: The program.
    """

    def __init__(self, directory: Path, binary: str) -> None:
        self.received: Queue[tuple[str, dict[str, Any]]] = Queue()
        self._webhook = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._webhook.serve_forever, daemon=True)
        self._thread.start()
        config = directory / "alertmanager.yml"
        config.write_text(self._render())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--cluster.listen-address=",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.put((self.path.strip("/"), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        return Handler

    def _render(self) -> str:
        """The shipped file, but for where receivers send to and how long groups are gathered."""
        content = yaml.safe_load(SHIPPED.read_text())
        port = self._webhook.server_address[1]
        for receiver in content["receivers"]:
            url = f"http://127.0.0.1:{port}/{receiver['name']}"
            receiver["webhook_configs"] = [{"url": url, "send_resolved": True}]
        for route in (content["route"], *content["route"]["routes"]):
            if "group_wait" in route:
                route["group_wait"] = "1s"
        return yaml.safe_dump(content, sort_keys=False)

    def wait_until_ready(self) -> None:
        """Waits for it to answer."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.ask("/-/ready")
            except (urllib.error.URLError, ConnectionError):
                assert self._process.poll() is None, "Alertmanager has ended"
                assert time.monotonic() < until, "Alertmanager is not ready"
                time.sleep(0.1)
            else:
                return

    def ask(self, path: str, body: object = None) -> bytes:
        """Returns what it answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: bytes = response.read()
        return answer

    def post(self, *names: str, run: str, **labels: str) -> None:
        """Tells it of alerts that fire for a run."""
        alerts = [
            {"labels": {"alertname": name, "severity": ALERTS[name], "run": run, **labels}}
            for name in names
        ]
        self.ask("/api/v2/alerts", alerts)

    def inhibited(self, run: str) -> set[str]:
        """Returns the alerts of a run that are held back now."""
        found = json.loads(self.ask(f"/api/v2/alerts?filter=run%3D%22{run}%22"))
        return {each["labels"]["alertname"] for each in found if each["status"]["inhibitedBy"]}

    def messages(self, run: str, receiver: str, expected: set[str]) -> dict[str, Any]:
        """Returns the message about a run to a receiver; there has to be exactly one."""
        kept: list[tuple[str, dict[str, Any]]] = []
        try:
            while True:
                name, message = self.received.get(timeout=DEADLINE_S)
                if name == receiver and message["groupLabels"] == {"run": run}:
                    found = {each["labels"]["alertname"] for each in message["alerts"]}
                    assert found == expected
                    return message
                kept.append((name, message))
        except Empty:
            pytest.fail(f"no message to {receiver} about run {run}; others: {kept}")
        finally:
            for each in kept:
                self.received.put(each)

    def close(self) -> None:
        """Ends both."""
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        self._webhook.shutdown()
        self._webhook.server_close()
        self._thread.join(30)


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    """A real Alertmanager on a free port."""
    binary = shutil.which("prometheus-alertmanager")
    if binary is None:
        pytest.skip("needs Alertmanager, Debian's package prometheus-alertmanager")
    running = Alertmanager(tmp_path_factory.mktemp("alertmanager"), binary)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.close()


def eventually(holds: Callable[[], bool]) -> bool:
    """Waits for a condition; tells whether it came to hold."""
    until = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.integration
def test_a_page_reaches_its_receiver(alertmanager: Alertmanager) -> None:
    """What fires is sent to the receiver of pages, with its labels."""
    alertmanager.post("FastVideoNonfiniteLoss", run="paged")
    message = alertmanager.messages("paged", "page", {"FastVideoNonfiniteLoss"})
    assert message["status"] == "firing"
    assert message["commonLabels"]["severity"] == "page"


@pytest.mark.integration
def test_one_message_for_all_warnings_of_a_run(alertmanager: Alertmanager) -> None:
    """Several alerts of one run, and of several error types, are one message."""
    alertmanager.post("FastVideoDataBound", "FastVideoStraggler", run="grouped")
    message = alertmanager.messages(
        "grouped", "warning", {"FastVideoDataBound", "FastVideoStraggler"}
    )
    assert message["groupLabels"] == {"run": "grouped"}


@pytest.mark.integration
def test_a_lost_rank_holds_back_what_follows_from_it(alertmanager: Alertmanager) -> None:
    """Of a run that lost ranks one page is sent; another run's alerts are not touched."""
    alertmanager.post("FastVideoRankMissing", run="lost")
    alertmanager.messages("lost", "page", {"FastVideoRankMissing"})
    follow = ("FastVideoRunStalled", "FastVideoStraggler", "FastVideoTargetDown")
    alertmanager.post(*follow, run="lost")
    alertmanager.post("FastVideoRunStalled", run="stalled")
    assert eventually(lambda: alertmanager.inhibited("lost") == set(follow))
    alertmanager.messages("stalled", "page", {"FastVideoRunStalled"})
    assert alertmanager.inhibited("stalled") == set()


@pytest.mark.integration
@pytest.mark.parametrize("cause", ["FastVideoDataBound", "FastVideoStraggler"])
def test_a_known_cause_holds_back_the_regression(alertmanager: Alertmanager, cause: str) -> None:
    """Nobody is woken for slow steps whose cause is known."""
    alertmanager.post(cause, "FastVideoStepTimeRegression", run=cause)
    alertmanager.messages(cause, "warning", {cause})
    assert eventually(lambda: alertmanager.inhibited(cause) == {"FastVideoStepTimeRegression"})
    # What is told later is sent later: a page would have been sent by the time this one is.
    alertmanager.post("FastVideoNonfiniteLoss", run=f"after {cause}")
    alertmanager.messages(f"after {cause}", "page", {"FastVideoNonfiniteLoss"})
    about = [message["groupLabels"]["run"] for _, message in list(alertmanager.received.queue)]
    assert cause not in about
