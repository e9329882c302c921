"""Asks a Prometheus server, over its HTTP API and with the standard library only."""

from __future__ import annotations

import http.client
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, FastVideoError

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUANTITY: Final = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")
_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "y": 31536000.0,
}


class PrometheusError(FastVideoError):
    """A Prometheus server does not answer, or answers with an error."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: Its labels, the metric's name among them where the expression keeps it.
        times: Unix seconds of the samples, ascending; one for an instant query.
        values: The samples; may be NaN or infinite.
    """

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration as Prometheus writes it, such as ``1m30s``.

    Args:
        text: One or more whole numbers with units.

    Raises:
        ConfigError: It is no such duration.
    """
    parts = _QUANTITY.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        message = f"expected a duration such as 15s, 5m or 1h30m, got {text!r}"
        raise ConfigError(message)
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


class Prometheus:
    """A Prometheus server.

    Args:
        url: Where it is, such as ``http://127.0.0.1:9090``; a path prefix is kept.
        timeout_s: How long one answer may take, in seconds.

    Raises:
        ConfigError: The URL is not one of http or https.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            message = f"expected a URL such as http://127.0.0.1:9090, got {url!r}"
            raise ConfigError(message)
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s

    def get(self, path: str, **parameters: Any) -> Any:  # noqa: ANN401 - JSON of any shape
        """Returns the ``data`` of an answer.

        Args:
            path: Below ``/api/v1/``.
            **parameters: Of the query; a list gives a parameter several times. A trailing
                underscore of a name stands for ``[]``.

        Raises:
            PrometheusError: There is no answer, or it is an error, or no Prometheus gave it.
        """
        query = urllib.parse.urlencode(
            {re.sub("_$", "[]", key): value for key, value in parameters.items()}, doseq=True
        )
        address = f"{self.url}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(address, timeout=self._timeout_s) as response:  # noqa: S310
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise PrometheusError(self._complaint(error, path)) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            message = (
                f"no Prometheus answers at {self.url}: {reason}. "
                "Is it running, and is this its address?"
            )
            raise PrometheusError(message) from error
        except ValueError as error:
            message = f"{self.url} answers, but not as a Prometheus does: {error}"
            raise PrometheusError(message) from error
        if not isinstance(answer, dict) or "data" not in answer:
            message = f"{self.url} answers, but not as a Prometheus does: it sent no 'data'"
            raise PrometheusError(message)
        return answer["data"]

    def _complaint(self, error: urllib.error.HTTPError, path: str) -> str:
        with error:
            body = error.read()
        try:
            answer = json.loads(body)
            return f"{self.url} refuses the {path}: {answer['errorType']}: {answer['error']}"
        except (ValueError, KeyError, TypeError):
            return (
                f"{self.url} answers {path} with status {error.code}, as a Prometheus does not; "
                "is this its address?"
            )

    def instant(self, expr: str, *, at: float) -> list[Series]:
        """Returns the series of an expression at one time.

        Args:
            expr: PromQL.
            at: Unix seconds.
        """
        data = self.get("query", query=expr, time=f"{at:.3f}")
        if data["resultType"] == "scalar":
            return [_series({}, [data["result"]])]
        return [_series(row["metric"], [row["value"]]) for row in data["result"]]

    def range(self, expr: str, *, start: float, end: float, step_s: float) -> list[Series]:
        """Returns the series of an expression over a time.

        Args:
            expr: PromQL.
            start: Unix seconds of the first sample.
            end: Unix seconds that no sample is after.
            step_s: Seconds between samples.
        """
        data = self.get(
            "query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step_s:.3f}"
        )
        return [_series(row["metric"], row["values"]) for row in data["result"]]

    def label_values(self, selector: str, label: str, *, start: float, end: float) -> list[str]:
        """Returns the values of a label in a time, sorted as people count.

        Args:
            selector: Series to look at, such as ``up{job="x"}``.
            label: Name of the label.
            start: Unix seconds.
            end: Unix seconds.
        """
        parameters: dict[str, Any] = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        if selector:
            parameters["match_"] = selector
        values: list[str] = self.get(f"label/{label}/values", **parameters)
        return sorted(values, key=natural_key)

    def exemplars(self, expr: str, *, start: float, end: float) -> list[dict[str, Any]]:
        """Returns the exemplars of the series that an expression selects.

        Args:
            expr: PromQL.
            start: Unix seconds.
            end: Unix seconds.

        Returns:
            One object an exemplar: its ``labels``, ``value``, ``timestamp`` and ``seriesLabels``.
        """
        data = self.get("query_exemplars", query=expr, start=f"{start:.3f}", end=f"{end:.3f}")
        return [
            {**exemplar, "seriesLabels": row["seriesLabels"]}
            for row in data
            for exemplar in row["exemplars"]
        ]

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that are pending or firing now."""
        found: list[dict[str, Any]] = self.get("alerts")["alerts"]
        return found

    def scrape_interval_s(self) -> float:
        """Returns the global scrape interval that the server was started with, in seconds."""
        config = str(self.get("status/config")["yaml"])
        found = re.search(r"^global:\n(?:  .*\n)*?  scrape_interval: (\S+)$", config, re.MULTILINE)
        return parse_duration(found.group(1)) if found else 60.0


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Returns a sorting key that puts 2 before 10."""
    pieces = re.split(r"(\d+)", text)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces if p]


def is_finite(series: Series) -> bool:
    """Says whether every sample is a number."""
    return all(math.isfinite(value) for value in series.values)


def _series(labels: Mapping[str, str], samples: list[Any]) -> Series:
    times = tuple(float(sample[0]) for sample in samples)
    return Series(labels, times, tuple(float(sample[1]) for sample in samples))
