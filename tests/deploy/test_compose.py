"""The compose files: valid, pinned, closed to the network, and true to what they mount."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    Compose = Callable[..., dict[str, Any]]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)

STACKS = {
    "jaeger": (),
    "tempo": ("compose.tempo.yaml",),
    "bridge": ("compose.bridge.yaml",),
    "tempo on a bridge": ("compose.tempo.yaml", "compose.bridge.yaml"),
}
# Where a program listens when it is on the host's network.
HOST_LISTENERS = {"prometheus": "127.0.0.1:9090", "grafana": "127.0.0.1:3000"}


@pytest.fixture(params=STACKS, ids=str)
def stack(request: pytest.FixtureRequest, compose: Compose) -> dict[str, Any]:
    """Each way in which the stack can be started."""
    return compose(*STACKS[request.param])


def services(stack: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that run, which those of a profile do not."""
    return {name: each for name, each in stack["services"].items() if "profiles" not in each}


def volumes(service: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Source, target and mode of a service's volumes."""
    return [(*each.split(":"), "rw")[:3] for each in service.get("volumes", ())]


def listens_at(service: dict[str, Any]) -> str:
    """The address that a program on the host's network is told to listen at."""
    for argument in service.get("command", ()):
        if argument.startswith("--web.listen-address="):
            return str(argument.partition("=")[2])
    environment = service["environment"]
    return f"{environment['GF_SERVER_HTTP_ADDR']}:{environment['GF_SERVER_HTTP_PORT']}"


def test_what_compose_reads_is_valid(stack: dict[str, Any]) -> None:
    """Every stack fits the schema of the Compose Specification."""
    VALIDATOR.validate(stack)


def test_the_schema_refuses_what_is_wrong(compose: Compose) -> None:
    """A misspelt key of a service does not pass."""
    stack = compose()
    stack["services"]["grafana"]["healthchek"] = {}
    with pytest.raises(jsonschema.ValidationError, match="healthchek"):
        VALIDATOR.validate(stack)


def test_grafana_does_not_start_without_a_password(compose: Compose) -> None:
    """An empty password is refused with a message that names the file to write it in."""
    with pytest.raises(LookupError, match=r"deploy/\.env"):
        compose(GF_SECURITY_ADMIN_PASSWORD="")


def test_the_example_of_settings_holds_no_password_and_every_name() -> None:
    """The example leaves the password open, and names what the files read, all of it."""
    text = (DEPLOY / ".env.example").read_text()
    settings = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert settings["GF_SECURITY_ADMIN_PASSWORD"] == ""
    read = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert set(settings) == read
    assert ".env" in (DEPLOY / ".gitignore").read_text().split()


def test_images_are_pinned_to_an_exact_version(stack: dict[str, Any]) -> None:
    """No tag moves, and services that share an image share its version."""
    images = [each["image"] for each in stack["services"].values()]
    assert [each for each in images if not re.search(r":v?\d+\.\d+\.\d+$", each)] == []
    assert len({each.partition(":")[0] for each in images}) == len(set(images))


def test_ports_are_open_to_this_machine_only(stack: dict[str, Any]) -> None:
    """Every port is published at 127.0.0.1, and what is on the host's network listens there."""
    for name, service in services(stack).items():
        ports = service.get("ports", ())
        assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
        if service.get("network_mode") == "host":
            assert listens_at(service) == HOST_LISTENERS[name]
            assert ports == ()


def test_no_two_services_want_one_port(stack: dict[str, Any]) -> None:
    """Each port of the host is given once."""
    taken = [
        port.split(":")[1] for each in services(stack).values() for port in each.get("ports", ())
    ]
    taken += [
        listens_at(each).split(":")[1]
        for each in services(stack).values()
        if each.get("network_mode") == "host"
    ]
    assert sorted(set(taken)) == sorted(taken)


def test_other_machines_reach_the_receivers_where_that_is_asked_for(compose: Compose) -> None:
    """The address of the OTLP ports, and of no others, can be chosen."""
    stack = compose(OTLP_ADDRESS="10.1.2.3")
    ports = [port for each in services(stack).values() for port in each.get("ports", ())]
    opened = [port for port in ports if not port.startswith("127.0.0.1:")]
    assert opened == ["10.1.2.3:4317:4317", "10.1.2.3:4318:4318"]


def test_nobody_gets_in_without_a_login_unless_asked_for(compose: Compose) -> None:
    """Anonymous access is off, and where it is turned on it may only look."""
    environment = compose()["services"]["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"


def test_what_is_mounted_is_a_directory_that_exists_and_is_read_only(
    stack: dict[str, Any],
) -> None:
    """A single file would go stale when an editor replaces it, and a missing folder be root's."""
    for service in services(stack).values():
        for source, _, mode in volumes(service):
            if source.startswith("."):
                assert (DEPLOY / source).is_dir(), source
                assert mode == "ro", source
            else:
                assert source in stack["volumes"]


def test_configurations_are_where_the_commands_look(stack: dict[str, Any]) -> None:
    """The file that a command names exists below a directory that is mounted there."""
    for name, service in services(stack).items():
        for argument in service.get("command", ()):
            flag, _, path = argument.partition("=")
            if flag not in {"--config.file", "-config.file", "--config"}:
                continue
            mounted = {target: source for source, target, _ in volumes(service)}
            folder, file = path.rsplit("/", 1)
            assert (DEPLOY / mounted[folder] / file).is_file(), name


def test_what_a_service_may_take_is_bounded(stack: dict[str, Any]) -> None:
    """Memory, processors and logs have limits, and capabilities are dropped."""
    for name, service in services(stack).items():
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        assert 0 < service["cpus"] <= 2, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if service["restart"] != "no":
            assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_health_is_asked_where_the_service_listens(stack: dict[str, Any]) -> None:
    """A health check names a port of its own service; others are scraped instead."""
    with_check = {name for name, each in services(stack).items() if "healthcheck" in each}
    assert with_check == {"prometheus", "alertmanager", "grafana"}
    for name in with_check:
        port = stack["services"][name]["healthcheck"]["test"][-1].split(":")[2].split("/")[0]
        assert port == {"prometheus": "9090", "alertmanager": "9093", "grafana": "3000"}[name]
    jobs = {each["job_name"] for each in _prometheus()["scrape_configs"]}
    unchecked = set(services(stack)) - with_check - {"volume-owner", "tempo"}
    assert unchecked - jobs == set()


def test_volumes_belong_to_who_writes_them(stack: dict[str, Any]) -> None:
    """A volume for a program that is not root is handed to it before it starts."""
    owner = services(stack)["volume-owner"]
    handed = {source for source, target, _ in volumes(owner) if target in owner["entrypoint"]}
    for name in {"otel-collector", "jaeger", "tempo"} & set(services(stack)):
        service = stack["services"][name]
        written = {source for source, _, mode in volumes(service) if mode == "rw"}
        assert written, name
        assert written - handed == set(), name
        condition = service["depends_on"]["volume-owner"]["condition"]
        assert condition == "service_completed_successfully"


def test_nothing_depends_on_what_does_not_run(stack: dict[str, Any]) -> None:
    """With Tempo, no service waits for Jaeger."""
    running = services(stack)
    needed = {each for service in running.values() for each in service.get("depends_on", ())}
    assert needed - set(running) == set()
    assert ("tempo" in running) != ("jaeger" in running)


def test_names_lead_to_services(stack: dict[str, Any]) -> None:
    """What is on the host's network reaches every service by name, at the port it is asked at."""
    running = services(stack)
    for service in running.values():
        if service.get("network_mode") != "host":
            continue
        known = dict(each.split(":") for each in service["extra_hosts"])
        assert set(running) - {"volume-owner"} - set(known) == set()
        assert set(known.values()) == {"127.0.0.1"}


def test_prometheus_scrapes_ports_that_are_there(compose: Compose) -> None:
    """Each static target of prometheus.yml is a published port or a listener of some stack."""
    reachable = set(HOST_LISTENERS.values())
    for overrides in STACKS.values():
        for name, service in services(compose(*overrides)).items():
            published = [each.split(":") for each in service.get("ports", ())]
            # The same number on both sides, so that a name works on either network.
            assert [each for each in published if each[1] != each[2]] == []
            reachable |= {f"{name}:{port}" for _, port, _ in published}
    reachable |= {f"{name}:{each.split(':')[1]}" for name, each in HOST_LISTENERS.items()}
    config = _prometheus()
    lists = [*config["scrape_configs"], *config["alerting"]["alertmanagers"]]
    asked = {
        target
        for each in lists
        for group in each.get("static_configs", ())
        for target in group["targets"]
    }
    assert asked - reachable == set()
    assert "alertmanager:9093" in asked


def test_target_files_are_read_where_trainers_write_them(compose: Compose) -> None:
    """The directory given to trainers is the one that prometheus.yml looks into."""
    stack = compose(FASTVIDEO_METRICS_TARGETS_DIR="/srv/targets")
    mounted = {source: target for source, target, _ in volumes(stack["services"]["prometheus"])}
    jobs = {each["job_name"]: each for each in _prometheus()["scrape_configs"]}
    files = jobs["fastvideo"]["file_sd_configs"][0]["files"]
    assert files == [f"{mounted['/srv/targets']}/*.json"]


def test_pushed_metrics_keep_their_labels() -> None:
    """The job that scrapes the Collector for the trainers' numbers leaves their labels alone."""
    jobs = {each["job_name"]: each for each in _prometheus()["scrape_configs"]}
    assert jobs["fastvideo-pushed"]["honor_labels"] is True


def test_exemplars_are_kept(stack: dict[str, Any]) -> None:
    """Prometheus is started with what exemplars need, on either network."""
    assert "--enable-feature=exemplar-storage" in stack["services"]["prometheus"]["command"]


def test_the_bridge_changes_nothing_but_the_network(compose: Compose) -> None:
    """Prometheus' arguments on a bridge are those of the host's network, but for the address."""
    on_host = set(compose()["services"]["prometheus"]["command"])
    on_bridge = set(compose("compose.bridge.yaml")["services"]["prometheus"]["command"])
    assert on_host ^ on_bridge == {
        "--web.listen-address=127.0.0.1:9090",
        "--web.listen-address=0.0.0.0:9090",
    }


@pytest.mark.integration
@pytest.mark.parametrize(
    ("service", "program"),
    [("prometheus", "prometheus"), ("alertmanager", "prometheus-alertmanager")],
)
def test_programs_know_their_flags(compose: Compose, service: str, program: str) -> None:
    """Each flag of a command is one that the program itself lists."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"(--[a-z][\w.-]+)", done.stdout + done.stderr))
    used = {each.partition("=")[0] for each in compose()["services"][service]["command"]}
    assert used - known == set()


def test_every_yaml_file_is_yaml() -> None:
    """Each file below deploy/ parses, with no key given twice."""
    files = [path for pattern in ("*.yaml", "*.yml") for path in DEPLOY.rglob(pattern)]
    assert len(files) > 10
    for path in files:
        for node in yaml.compose_all(path.read_text(), yaml.SafeLoader):
            assert list(_repeated(node)) == [], path


def _repeated(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.MappingNode):
        keys = [str(key.value) for key, _ in node.value]
        found = [key for key in set(keys) if keys.count(key) > 1]
        return found + [each for _, value in node.value for each in _repeated(value)]
    if isinstance(node, yaml.SequenceNode):
        return [each for value in node.value for each in _repeated(value)]
    return []


def _prometheus() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    return content
