"""The whole stack on a real run that goes wrong in every way there is an alert for."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from live_stack import RULES
from recorded_run import NAME as RECORDED
from scenario import RUN, SHORT_RUN, STOPPED_RUN, Scenario, Stack, play

from fastvideo.dashboards import all_dashboards, expressions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.distributed, pytest.mark.slow]

OWN_PHASE = {
    "FastVideoStraggler": "slow rank",
    "FastVideoDataBound": "slow data",
    "FastVideoNonfiniteLoss": "nan",
    "FastVideoRunStalled": "hang",
    "FastVideoRankMissing": "rank lost",
}
AFTER_THE_LOSS = {"FastVideoStepErrors", "FastVideoTargetDown"}
"""What may follow a lost rank, if it is noticed before the end: the others' broken connections."""


OF_STEPS = {"fastvideo-overview", "fastvideo-step"}
DATA = "fastvideo-data"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """Plays the scenario once."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        play(stack.scenario)
        yield stack.scenario
    except AssertionError as error:
        message = f"{error}\nThe run said:\n{stack.scenario.run.output()[-3000:]}"
        raise AssertionError(message) from error
    finally:
        stack.close()


def test_each_alert_fires_in_its_own_phase_and_no_other_does(scenario: Scenario) -> None:
    """Five faults, five alerts, in order; nothing fires while all is well."""
    fired = {name: scenario.phase_of(at) for name, at in scenario.first_fired(RUN).items()}
    extra = {name: phase for name, phase in fired.items() if name not in OWN_PHASE}
    assert {name: phase for name, phase in fired.items() if name in OWN_PHASE} == OWN_PHASE
    assert set(extra) <= AFTER_THE_LOSS
    assert set(extra.values()) <= {"rank lost"}


# Prometheus takes up to five real seconds to forget a target, which are five minutes here.
@pytest.mark.parametrize(
    ("run", "artefacts"),
    [
        (RECORDED, set()),
        (SHORT_RUN, {"FastVideoTargetDown"}),
        (STOPPED_RUN, {"FastVideoTargetDown"}),
    ],
)
def test_a_healthy_run_beside_it_alerts_nobody(
    scenario: Scenario, run: str, artefacts: set[str]
) -> None:
    """One goes well all the time, one has ended well before the faults begin, one was stopped."""
    steps = scenario.prometheus.client.instant(
        f'last_over_time(fastvideo_training_steps_total{{run="{run}"}}[10m])', at=time.time()
    )
    assert min(one.values[-1] for one in steps) >= 30
    assert set(scenario.first_fired(run)) <= artefacts


def test_a_run_that_was_stopped_has_said_so(scenario: Scenario) -> None:
    """SIGTERM ended it, and what Prometheus knows last of it is that it is not active."""
    assert scenario.stopped.process.wait(30) == 143
    ended = f'last_over_time(fastvideo_run_active{{run="{STOPPED_RUN}"}}[10m])'
    assert scenario.value(ended) == {"0": 0.0}


def late_rank(scenario: Scenario, phase: str) -> tuple[str, bool]:
    """Returns the rank that is latest in a phase, and whether the others lose a tenth by it."""
    late = scenario.late[phase]
    rank = max(late, key=late.__getitem__)
    return rank, late[rank] > 0.1


def test_the_slow_rank_is_late(scenario: Scenario) -> None:
    """The rank that works longest is late, though the steps of all last equally long."""
    assert late_rank(scenario, "slow rank") == ("0", True)


def test_the_rank_with_slow_data_is_late(scenario: Scenario) -> None:
    """The rank that waits for its data is late, and not the one that waits for that rank."""
    assert late_rank(scenario, "slow data") == ("1", True)


def test_alertmanager_routes_pages_and_warnings(scenario: Scenario) -> None:
    """Each alert comes to the receiver of its severity, with a link to its runbook."""
    sent = {
        (alert["labels"]["alertname"], message["path"].strip("/"))
        for message in scenario.webhook.received
        for alert in message["alerts"]
    }
    assert {
        ("FastVideoStraggler", "warning"),
        ("FastVideoDataBound", "warning"),
        ("FastVideoNonfiniteLoss", "page"),
        ("FastVideoRunStalled", "page"),
        ("FastVideoRankMissing", "page"),
    } <= sent
    for alert in scenario.webhook.alerts():
        name, run = alert["labels"]["alertname"], alert["labels"]["run"]
        assert alert["annotations"]["runbook_url"].endswith(f"#{name.lower()}")
        assert f"run={run}" in alert["annotations"]["dashboard_url"]


def test_descriptions_are_filled_in(scenario: Scenario) -> None:
    """A description names the run and has its numbers; no template is left or has failed."""
    texts = {
        alert["labels"]["alertname"]: alert["annotations"]["description"]
        for alert in scenario.webhook.alerts()
        if alert["labels"]["run"] == RUN
    }
    for text in texts.values():
        assert RUN in text
        assert "{{" not in text
        assert "error" not in text
        assert "<no value>" not in text
    assert "rank 0" in texts["FastVideoStraggler"] or "rank 1" in texts["FastVideoStraggler"]
    assert "rank 1" in texts["FastVideoDataBound"]


def test_regions_and_the_rest_are_the_step(scenario: Scenario) -> None:
    """What the regions of a step took, plus what is unattributed, is the step, within 1 %."""
    totals = scenario.totals
    for rank in ("0", "1"):
        parts = totals["regions"][rank] + totals["rest"][rank]
        assert parts == pytest.approx(totals["steps"][rank], rel=0.01)


def test_every_query_of_a_healthy_run_returns_what_its_panel_promises(scenario: Scenario) -> None:
    """Finite, inside the unit's range, with all labels; without data only where the board says."""
    reasons = {
        (one.dashboard, one.panel): one.may_be_empty
        for board in all_dashboards()
        for one in expressions(board)
        if one.may_be_empty
    }
    healthy = scenario.answers["healthy"]
    assert [
        f"{answer.dashboard}, {answer.panel}: {answer.sent}"
        for answer in healthy
        if not answer.series and (answer.dashboard, answer.panel) not in reasons
    ] == []
    judged = [*healthy, *scenario.answers["recorded"]]
    assert [complaint for answer in judged for complaint in answer.complaints()] == []


def test_every_query_has_data_at_some_time(scenario: Scenario) -> None:
    """What a healthy run does not have, the faults or the recorded run have."""
    answers = [answer for answers in scenario.answers.values() for answer in answers]
    filled = {answer.key for answer in answers if answer.series}
    empty = {answer.key: answer.sent for answer in answers if answer.key not in filled}
    assert [f"{key[0]}, {key[1]}: {sent}" for key, sent in empty.items()] == []


def test_every_rule_is_evaluated_and_every_recorded_series_is_there(scenario: Scenario) -> None:
    """No rule has an error; each recording rule has recorded something."""
    client = scenario.prometheus.client
    rules = [rule for group in client.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    assert {rule["health"] for rule in rules} == {"ok"}
    shipped = [
        rule["record"]
        for file in RULES.glob("*.yaml")
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    ]
    names = set(client.get("label/__name__/values"))
    assert set(shipped) <= names


def test_exemplars_of_step_panels_lead_to_spans(scenario: Scenario) -> None:
    """Queries about steps that ask for exemplars get some: traces that were sent."""
    traces = {
        span["traceId"]
        for file in (scenario.run.directory / "spans").glob("*.jsonl")
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }
    of_steps = {key: found for key, found in scenario.exemplars.items() if key[0] in OF_STEPS}
    assert of_steps
    for panel, found in of_steps.items():
        assert found, panel
        assert {exemplar["labels"]["trace_id"] for exemplar in found} <= traces


def test_exemplars_of_data_panels_come_back(scenario: Scenario) -> None:
    """The data dashboard asks for exemplars too."""
    of_data = {key: found for key, found in scenario.exemplars.items() if key[0] == DATA}
    assert all(of_data.values())


def test_nobody_renames_labels(scenario: Scenario) -> None:
    """Neither run nor rank became exported_run or exported_rank."""
    labels = scenario.prometheus.client.get("labels")
    assert [label for label in labels if label.startswith("exported_")] == []
