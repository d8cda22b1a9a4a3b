"""deploy/aws/services.yaml: its processes stop in time, stay alive in outages and scale by backlog."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from conveyor.adapters.aws.embedded_metrics import DIMENSION
from conveyor.app.roles import Role, check_role
from conveyor.settings import Settings
from conveyor.settings_loader import load_settings
from tests.deploy.templates import DATA, SERVICES, lint, resources, stack, template
from tests.deploy.test_data_stack import kept_data_removed
from tests.emulators import Emulator

# docs/aws-unverified.md lists them.
NOT_EMULATED = {
    "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::ApplicationAutoScaling::ScalingPolicy",
    "AWS::EC2::EIP",
    "AWS::EC2::NatGateway",
}
STOP = 120  # seconds from SIGTERM to SIGKILL, the most that Fargate allows


def test_the_template_has_no_findings_of_the_linter() -> None:
    assert lint(SERVICES) == ""


@pytest.mark.parametrize("role", [Role.API, Role.WORKER])
def test_a_process_starts_with_the_settings_of_its_container(role: Role) -> None:
    check_role(role, _settings(role))


@pytest.mark.parametrize("role", [Role.API, Role.WORKER])
def test_a_process_has_stopped_before_fargate_kills_it(role: Role) -> None:
    assert _container(role)["StopTimeout"] == STOP
    assert _settings(role).grace.total_seconds() <= STOP - 10


@pytest.mark.parametrize("role", [Role.API, Role.WORKER])
def test_a_container_is_confined_and_is_not_restarted_for_an_unavailable_engine(role: Role) -> None:
    container, settings = _container(role), _settings(role)
    assert container["ReadonlyRootFilesystem"] is True
    assert container["LinuxParameters"]["Capabilities"] == {"Drop": ["ALL"]}
    port = settings.metrics_port if role is Role.WORKER else settings.port
    assert f":{port}/healthz" in container["HealthCheck"]["Command"][-1]
    [targets] = resources(SERVICES, "AWS::ElasticLoadBalancingV2::TargetGroup").values()
    assert targets["Properties"]["HealthCheckPath"] == "/healthz"


def test_workers_are_scaled_by_the_metric_that_they_publish() -> None:
    policies = resources(SERVICES, "AWS::ApplicationAutoScaling::ScalingPolicy")
    tracking = policies["WorkersByBacklog"]["Properties"][
        "TargetTrackingScalingPolicyConfiguration"
    ]
    metric = tracking["CustomizedMetricSpecification"]
    [(name, value)] = DIMENSION.items()

    assert metric["MetricName"] == "BacklogPerWorker"
    assert metric["Dimensions"] == [{"Name": name, "Value": value}]
    assert metric["Namespace"] == {"Ref": "DataStack"} == _environment(Role.WORKER)["CLOUDWATCH"]
    parameters = template(SERVICES)["Parameters"]
    assert (parameters["LeastWorkers"]["Default"], parameters["MostWorkers"]["Default"]) == (2, 10)
    assert parameters["Backlog"]["Default"] < Settings().concurrency


@pytest.mark.long
def test_a_stack_is_created_over_a_data_stack(ministack: Emulator) -> None:
    environment = f"t{uuid4().hex[:8]}"
    data, services = f"data-{environment}", f"services-{environment}"
    given = {
        "DataStack": data,
        "Image": "conveyor:1",
        "Certificate": "arn:aws:acm:eu-west-1:000000000000:certificate/one",
        "DomainName": "conveyor.example",
    }
    with (
        kept_data_removed(ministack, environment),
        stack(ministack, data, template(DATA), Environment=environment),
        stack(ministack, services, _emulated(), **given) as outputs,
    ):
        assert outputs["LoadBalancer"]
        ecs = ministack.client("ecs")
        assert len(ecs.list_services(cluster=outputs["Cluster"])["serviceArns"]) == 2


def _container(role: Role) -> dict[str, Any]:
    task = resources(SERVICES, "AWS::ECS::TaskDefinition")[f"{role.title()}Task"]
    [container] = task["Properties"]["ContainerDefinitions"]
    assert container["Command"] == [role]
    found: dict[str, Any] = container
    return found


def _environment(role: Role) -> dict[str, Any]:
    """Values of settings, as the template has them."""
    return {
        one["Name"].removeprefix("CONVEYOR_"): one["Value"]
        for one in _container(role)["Environment"]
        if one["Name"].startswith("CONVEYOR_")
    }


def _settings(role: Role) -> Settings:
    """The settings of a container, with names of resources in place of references."""
    names = {"Gateway": "https://gateway.example", "Auth": "keys", "DataStack": "data"}
    environ = dict[str, str]()
    for name, value in _environment(role).items():
        environ[f"CONVEYOR_{name}"] = _resolved(value, names)
    return load_settings({}, environ=environ)


def _resolved(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    [(function, given)] = value.items()
    if function == "Ref":
        return names.get(given, "name")
    if function == "Fn::If":
        return str(given[1])
    text = given if isinstance(given, str) else given[0]
    return re.sub(r"\$\{[^}]*\}", "name", text)


# The template without what the emulator lacks.


def _emulated() -> dict[str, Any]:
    body = template(SERVICES)
    lacking = {name for name, one in body["Resources"].items() if one["Type"] in NOT_EMULATED}
    kept = {name: one for name, one in body["Resources"].items() if name not in lacking}
    pruned = {name: dict(_pruned(one, lacking)) for name, one in kept.items()}
    for one in pruned.values():
        waits = one.pop("DependsOn", [])
        if still := [name for name in _listed(waits) if name not in lacking]:
            one["DependsOn"] = still
    return {**body, "Resources": pruned}


def _pruned(value: Any, lacking: set[str]) -> Any:
    """With a text in place of each reference to something that is lacking."""
    if isinstance(value, list):
        return [_pruned(one, lacking) for one in value]
    if not isinstance(value, dict):
        return value
    if lacking & set(_referred(value)):
        return "lacking"
    return {key: _pruned(one, lacking) for key, one in value.items()}


def _referred(value: Mapping[str, Any]) -> Iterator[str]:
    if "Ref" in value:
        yield value["Ref"]
    if "Fn::GetAtt" in value:
        yield value["Fn::GetAtt"][0]


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value
