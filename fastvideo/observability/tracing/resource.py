"""The resource of all spans of a process: which rank of which run, on which host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.tracing.records import AttributeValue
    from fastvideo.observability.tracing.settings import TraceSettings

SCOPE_NAME: Final = "fastvideo.observability"


def resource_attributes(
    settings: TraceSettings, identity: RunIdentity
) -> dict[str, AttributeValue]:
    """Returns the attributes of the resource.

    Nothing is looked up on a network or asked of a cloud: what is not known here comes from
    ``OTEL_RESOURCE_ATTRIBUTES``, which wins over all but ``service.name`` of its own variable.

    Args:
        settings: For the service's name and the attributes that the user adds.
        identity: Who this process is.
    """
    own: dict[str, AttributeValue] = {
        "service.name": settings.service_name,
        "service.instance.id": identity.service_instance_id,
        "host.name": identity.host_name,
        "host.id": identity.host_id,
        "fastvideo.run": identity.run_name,
        "fastvideo.run_id": identity.run_id,
        "fastvideo.attempt": identity.attempt,
        "fastvideo.rank": identity.rank,
        "fastvideo.local_rank": identity.local_rank,
        "fastvideo.world_size": identity.world_size,
    }
    return {**own, **settings.resource}


def scope_version() -> str:
    """Returns the version of this package, or an empty text where it is not installed."""
    try:
        return version("fastvideo")
    except PackageNotFoundError:
        return ""
