"""A run that goes well, then wrong in one way after the other, watched by the whole stack.

The rules look at minutes. Here everything is 60 times as fast, see `live_stack.scale_rules`, and
every phase lasts until what it is about has been noticed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluate_boards import Answer, evaluate, exemplar_queries
from live_stack import (
    RULES,
    LiveAlertmanager,
    LivePrometheus,
    Webhook,
    scale_dashboard,
    scale_rules,
    wait_until,
)
from observed_run import ObservedRun, ShortRun, tiny_assets
from recorded_run import NAME as RECORDED
from recorded_run import RecordedRun

from fastvideo.dashboards import all_dashboards, to_json
from fastvideo.dashboards.substitute import Window

if TYPE_CHECKING:
    from pathlib import Path

RUN = "faulty"
SHORT_RUN = "ended-well"
SHORT_STEPS = 40
STOPPED_RUN = "stopped-by-hand"
FACTOR = 60.0
SECONDS = ("300", "1800")
"""Numbers of the rules that are seconds: five minutes, half an hour."""

INTERVAL = "500ms"
PACE = {"forward_s": 0.2}
"""Every step sleeps a little, so that noise of a busy machine is a small part of it."""

_PATIENCE_S = 90


@dataclass
class Scenario:
    """What happened.

    Attributes:
        prometheus: It is still there.
        webhook: What Alertmanager sent.
        run: The run.
        stopped: Another one, which is stopped in the middle.
        started: Unix time at which everything was started.
        began: Unix time at which each phase began.
        answers: What the dashboards' queries returned, by the phase they were asked in.
        exemplars: Exemplars of the queries that ask for them, by dashboard and panel.
        totals: Seconds per rank in steps, in their regions and in neither.
        late: Share of the step by which each rank was late, by phase.
    """

    prometheus: LivePrometheus
    webhook: Webhook
    run: ObservedRun
    stopped: ShortRun
    started: float = field(default_factory=time.time)
    began: dict[str, float] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    exemplars: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    totals: dict[str, dict[str, float]] = field(default_factory=dict)
    late: dict[str, dict[str, float]] = field(default_factory=dict)

    def value(self, expr: str) -> dict[str, float]:
        """Returns the values of an expression now, by rank."""
        found = self.prometheus.client.instant(expr, at=time.time())
        return {one.labels.get("rank", ""): one.values[-1] for one in found}

    def fires(self, alert: str) -> bool:
        """Says whether an alert of the run fires."""
        return bool(self.value(f'ALERTS{{alertname="{alert}",alertstate="firing",run="{RUN}"}}'))

    def await_alert(self, alert: str) -> None:
        """Waits until an alert of the run fires."""
        wait_until(lambda: self.fires(alert), f"{alert} to fire", timeout_s=_PATIENCE_S)

    def first_fired(self, run: str) -> dict[str, float]:
        """Returns when each alert of a run fired for the first time."""
        found = self.prometheus.client.get(
            "query", query=f'ALERTS{{alertstate="firing",run="{run}"}}[10m]', time=time.time()
        )["result"]
        first: dict[str, float] = {}
        for one in found:
            name, at = one["metric"]["alertname"], float(one["values"][0][0])
            first[name] = min(first.get(name, at), at)
        return first

    def phase_of(self, at: float) -> str:
        """Returns the phase that a moment lies in."""
        return max((began, name) for name, began in self.began.items() if began <= at)[1]

    def begin(self, phase: str, faults: dict[str, dict[str, Any]]) -> None:
        """Begins a phase."""
        self.run.set({"all": PACE, **faults})
        self.began[phase] = time.time()

    def ask(self, phase: str, run: str = RUN) -> None:
        """Asks every query of every dashboard about the time until now."""
        window = Window(self.started, time.time(), self.prometheus.interval_s)
        for board in all_dashboards():
            dashboard = scale_dashboard(to_json(board), FACTOR)
            given = {"run": run}
            client = self.prometheus.client
            self.answers.setdefault(phase, []).extend(evaluate(dashboard, client, window, given))
            if phase == "healthy":
                self.exemplars |= exemplar_queries(dashboard, client, window, given)


def play(scenario: Scenario) -> None:
    """Goes through the phases."""
    _healthy(scenario)
    _slow_rank(scenario)
    _slow_data(scenario)
    _nan(scenario)
    _hang(scenario)
    _rank_lost(scenario)


def _steps(scenario: Scenario) -> float:
    steps = scenario.value(f'fastvideo_training_steps_total{{run="{RUN}"}}')
    return min(steps.values()) if len(steps) == 2 else 0.0


def _healthy(scenario: Scenario) -> None:
    wait_until(lambda: _steps(scenario) >= 3, "the first steps", timeout_s=_PATIENCE_S)
    scenario.begin("healthy", {})
    # Both the windows of the rules and their `for` are 10 s at most.
    wait_until(
        lambda: time.time() > scenario.began["healthy"] + 21 and _steps(scenario) >= 20,
        "some more steps",
        timeout_s=_PATIENCE_S,
    )
    scenario.ask("healthy")


def _slow_rank(scenario: Scenario) -> None:
    scenario.stopped.process.terminate()
    scenario.begin("slow rank", {"0": {"backward_s": 0.8}})
    scenario.await_alert("FastVideoStraggler")
    scenario.late["slow rank"] = scenario.value(f'rank:fastvideo_late_ratio:mean10m{{run="{RUN}"}}')


def _slow_data(scenario: Scenario) -> None:
    scenario.begin("slow data", {"1": {"dataloader_s": 0.8}})
    scenario.await_alert("FastVideoDataBound")
    scenario.late["slow data"] = scenario.value(f'rank:fastvideo_late_ratio:mean10m{{run="{RUN}"}}')


def _nan(scenario: Scenario) -> None:
    scenario.begin("nan", {"1": {"nan": True}})
    scenario.await_alert("FastVideoNonfiniteLoss")
    scenario.ask("nan")


def _hang(scenario: Scenario) -> None:
    scenario.begin("hang", {"1": {"hang": True}})
    scenario.await_alert("FastVideoRunStalled")
    children = "training_(dataloader|forward|backward|optimizer|callbacks)"
    for name, expr in {
        "regions": f'fastvideo_region_duration_seconds_sum{{run="{RUN}",region=~"{children}"}}',
        "rest": f'fastvideo_training_unattributed_seconds_total{{run="{RUN}"}}',
        "steps": f'fastvideo_training_step_duration_seconds_sum{{run="{RUN}"}}',
    }.items():
        scenario.totals[name] = scenario.value(f"sum by (rank) ({expr})")


def _rank_lost(scenario: Scenario) -> None:
    scenario.begin("rank lost", {})
    scenario.run.kill_rank(1)
    scenario.await_alert("FastVideoRankMissing")
    wait_until(
        lambda: any(a["labels"]["alertname"] == "FastVideoRankMissing" for a in _sent(scenario)),
        "Alertmanager to say so",
        timeout_s=_PATIENCE_S,
    )
    scenario.ask("rank lost")
    scenario.ask("recorded", RECORDED)


def _sent(scenario: Scenario) -> list[dict[str, Any]]:
    return scenario.webhook.alerts()


class Stack:
    """Everything the scenario needs, started.

    Args:
        directory: For all of it.
    """

    def __init__(self, directory: Path) -> None:
        self._closing: list[Any] = []
        assets = tiny_assets(directory)
        rules = directory / "rules"
        scale_rules(RULES, rules, FACTOR, interval=INTERVAL, seconds=SECONDS)
        try:
            webhook = self._keep(Webhook())
            alertmanager = self._keep(
                LiveAlertmanager(directory / "alertmanager", webhook.url, factor=FACTOR)
            )
            prometheus = self._keep(
                LivePrometheus(
                    directory / "prometheus",
                    interval=INTERVAL,
                    rules=rules,
                    alertmanager=alertmanager.address,
                )
            )
            self._keep(RecordedRun(prometheus))
            self._keep(ShortRun(prometheus.targets, SHORT_RUN, SHORT_STEPS))
            stopped = self._keep(ShortRun(prometheus.targets, STOPPED_RUN, 1_000_000))
            run = self._keep(
                ObservedRun(
                    directory / "run",
                    assets,
                    prometheus.targets,
                    name=RUN,
                    faults={"all": PACE},
                    env={"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
                )
            )
        except BaseException:
            self.close()
            raise
        self.scenario = Scenario(prometheus, webhook, run, stopped)

    def _keep(self, part: Any) -> Any:
        self._closing.append(part)
        return part

    def close(self) -> None:
        """Ends it all, in the opposite order."""
        while self._closing:
            self._closing.pop().close()
