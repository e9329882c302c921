"""What can be wrong with a query, found in its syntax tree and in the families of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import promql_parser as promql

from fastvideo.errors import did_you_mean
from fastvideo.observability.metrics.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastvideo.observability.metrics.families import Kind

FOREIGN: Final[dict[str, frozenset[str]]] = {
    "up": frozenset({"job", "instance"}),
    "scrape_duration_seconds": frozenset({"job", "instance"}),
    "scrape_samples_scraped": frozenset({"job", "instance"}),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "run"}),
    "ALERTS_FOR_STATE": frozenset({"alertname", "severity", "run"}),
}
"""Metrics that Prometheus itself makes, and labels that they have."""

SUFFIXES: Final[dict[Kind, tuple[str, ...]]] = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_sum", "_count", "_bucket"),
    "summary": ("_sum", "_count"),
}
"""How the series of a family of each kind end."""

_EVERYWHERE: Final = frozenset({"run", "rank", "job", "instance"})
_NEEDS_COUNTER: Final = frozenset({"rate", "increase", "irate", "resets"})
_WINDOWED: Final = _NEEDS_COUNTER | {"changes"}
_KEEPING: Final = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_SETS: Final = frozenset({"and", "or", "unless"})
_RATE_WINDOW: Final = timedelta(seconds=111)
_BUILT_IN: Final = {"__rate_interval": "111s", "__range": "3333s", "__interval": "77s"}
_LEGEND_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})")


@dataclass(slots=True)
class _Findings:
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def lint_query(
    expr: str, *, legend: str = "", variables: Mapping[str, str] | None = None
) -> list[str]:
    """Returns what is wrong with a query, in a line each.

    Args:
        expr: PromQL with Grafana's variables in it.
        legend: Its legend, whose labels must be in the answer.
        variables: A value for each variable of the dashboard.
    """
    values = {**(variables or {}), **_BUILT_IN}
    unknown = sorted(name for name in _named(expr) if name not in values)
    if unknown:
        return [f"${name} is no variable of the dashboard" for name in unknown]
    try:
        tree = promql.parse(_fill_in(expr, values))
    except ValueError as error:
        return [f"no PromQL: {error}"]
    findings = _Findings()
    for node in _walk(tree):
        _check(node, findings)
    kept = _labels(tree, findings)
    if kept is not None:
        for label in _LEGEND_LABEL.findall(legend):
            if label not in kept:
                findings.add(f"the legend names {label!r}, which the query does not keep")
    return findings.problems


def metrics_in(expr: str) -> set[str]:
    """Returns the names of the series that a query asks for, as they are scraped.

    Args:
        expr: PromQL, with variables or without.
    """
    values = dict.fromkeys(_named(expr), "x") | _BUILT_IN
    tree = promql.parse(_fill_in(expr, values))
    nodes = (node for node in _walk(tree) if isinstance(node, promql.VectorSelector))
    return {node.name for node in nodes if node.name is not None}


def family_of(series: str) -> str | None:
    """Returns the family that a series belongs to, or None: no family has such series.

    Args:
        series: Name of a series, such as ``fastvideo_region_duration_seconds_sum``.
    """
    for name, family in FAMILIES.items():
        if any(series == f"{name}{suffix}" for suffix in SUFFIXES[family.kind]):
            return name
    return None


def has_quantile(expr: str) -> bool:
    """Tells whether a query asks for a quantile of a histogram."""
    return "histogram_quantile" in expr


def _named(expr: str) -> set[str]:
    return {bare or braced for bare, braced in _VARIABLE.findall(expr)}


def _fill_in(expr: str, values: Mapping[str, str]) -> str:
    """Puts something in the place of each variable; only the parser has to be content with it."""
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], expr)


def _children(node: promql.Expr) -> Iterator[promql.Expr]:
    match node:
        case promql.BinaryExpr():
            yield node.lhs
            yield node.rhs
        case promql.AggregateExpr():
            if node.param is not None:
                yield node.param
            yield node.expr
        case promql.Call():
            yield from node.args
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield node.expr


def _walk(node: promql.Expr) -> Iterator[promql.Expr]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _check(node: promql.Expr, findings: _Findings) -> None:
    match node:
        case promql.VectorSelector():
            _check_selector(node, findings)
        case promql.Call():
            _check_call(node, findings)
        case promql.AggregateExpr():
            if str(node.op) in ("avg", "sum") and _contains_quantile(node.expr):
                findings.add(f"{node.op} of histogram_quantile: quantiles cannot be averaged")
        case promql.BinaryExpr():
            if str(node.op) == "/" and not _is_guarded(node.rhs):
                findings.add("a division by what can be zero: compare the divisor with > 0")


def _check_selector(node: promql.VectorSelector, findings: _Findings) -> None:
    name = node.name
    if name is None:
        findings.add("a selector without the name of a metric")
        return
    if name not in FOREIGN and family_of(name) is None:
        known = [f"{n}{s}" for n, family in FAMILIES.items() for s in SUFFIXES[family.kind]]
        findings.add(f"{name!r} is no metric of this package.{did_you_mean(name, known)}")
    for matcher in node.matchers.matchers:
        if matcher.name == "le" and matcher.value != "+Inf":
            findings.add(f"le is matched as text ({matcher.value}): its text is not settled")


def _check_call(node: promql.Call, findings: _Findings) -> None:
    name = node.func.name
    if name in _WINDOWED:
        argument = node.args[0]
        if not isinstance(argument, promql.MatrixSelector) or argument.range != _RATE_WINDOW:
            findings.add(f"{name} over a window that is not $__rate_interval")
        elif name in _NEEDS_COUNTER and _is_gauge(argument.vector_selector.name):
            findings.add(f"{name} of {argument.vector_selector.name}, which is a gauge")
    if name == "histogram_quantile":
        kept = _labels(node.args[1], _Findings())
        if kept is not None and "le" not in kept:
            findings.add("histogram_quantile of what has lost its label le")
    if name.endswith("_over_time") and name != "max_over_time" and _contains_quantile(node):
        findings.add(f"{name} of histogram_quantile: quantiles cannot be averaged")


def _contains_quantile(node: promql.Expr) -> bool:
    calls = (each for each in _walk(node) if isinstance(each, promql.Call))
    return any(call.func.name == "histogram_quantile" for call in calls)


def _is_gauge(name: str | None) -> bool:
    family = FAMILIES.get(name or "")
    return family is not None and family.kind == "gauge"


def _is_guarded(node: promql.Expr) -> bool:
    """Tells whether a divisor has no zeros: a number, a comparison with one, a clamp, or a mean."""
    match node:
        case promql.NumberLiteral():
            return True
        case promql.ParenExpr():
            return _is_guarded(node.expr)
        case promql.Call():
            return node.func.name == "clamp_min"
        case promql.BinaryExpr():
            op = str(node.op)
            return op == ">" or (op == "/" and _is_guarded(node.rhs))
        case _:
            return False


Labels = frozenset[str] | None
"""Labels of an answer; None: not known."""


def _labels(node: promql.Expr, findings: _Findings) -> Labels:
    """Returns the labels that the answer of a query has; reports labels that cannot match."""
    labels: Labels = None
    match node:
        case promql.NumberLiteral() | promql.StringLiteral():
            labels = frozenset()
        case promql.VectorSelector():
            labels = _labels_of_metric(node.name)
        case promql.MatrixSelector():
            labels = _labels_of_metric(node.vector_selector.name)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            labels = _labels(node.expr, findings)
        case promql.Call():
            labels = _labels_of_call(node, findings)
        case promql.AggregateExpr():
            labels = _labels_of_aggregate(node, findings)
        case promql.BinaryExpr():
            labels = _labels_of_binary(node, findings)
    return labels


def _labels_of_metric(name: str | None) -> Labels:
    if name in FOREIGN:
        return FOREIGN[name]
    owner = family_of(name or "")
    if name is None or owner is None:
        return None
    le = {"le"} if name.endswith("_bucket") else set()
    return frozenset({*FAMILIES[owner].labels, *_EVERYWHERE, *le})


def _labels_of_call(node: promql.Call, findings: _Findings) -> Labels:
    name = node.func.name
    if name in ("time", "vector"):
        return frozenset()
    if name.startswith("label_"):
        return None
    vectors = [arg for arg in node.args if not isinstance(arg, promql.NumberLiteral)]
    inner = _labels(vectors[-1], findings) if vectors else frozenset[str]()
    return inner - {"le"} if inner is not None and name == "histogram_quantile" else inner


def _labels_of_aggregate(node: promql.AggregateExpr, findings: _Findings) -> Labels:
    inner = _labels(node.expr, findings)
    modifier = node.modifier
    named = frozenset(modifier.labels) if modifier is not None else frozenset[str]()
    without = modifier is not None and modifier.type == promql.AggModifierType.Without
    if inner is not None and not named <= inner:
        missing = ", ".join(sorted(named - inner))
        findings.add(f"{node.op} by or without {missing}, which its operand does not have")
    if str(node.op) in _KEEPING:
        return inner
    if without:
        return None if inner is None else inner - named
    return named


def _labels_of_binary(node: promql.BinaryExpr, findings: _Findings) -> Labels:
    left, right = _labels(node.lhs, findings), _labels(node.rhs, findings)
    if left is None or right is None:
        return None
    if _is_scalar(node.lhs) or _is_scalar(node.rhs):
        return left | right
    op = str(node.op)
    modifier = node.modifier
    if modifier is not None and modifier.matching is not None and op not in _SETS:
        return _labels_of_matching(modifier, left, right)
    plain = modifier is None or modifier.matching is None
    if plain and left != right and op != "or":
        shown = " and ".join("{" + ", ".join(sorted(side)) + "}" for side in (left, right))
        findings.add(f"'{op}' of {shown}: labels differ, nothing matches")
    return left & right if op == "or" else left


def _labels_of_matching(
    modifier: promql.BinModifier, left: frozenset[str], right: frozenset[str]
) -> frozenset[str]:
    extra = frozenset(modifier.group_labels or ())
    if modifier.card == promql.VectorMatchCardinality.ManyToOne:
        return left | extra
    if modifier.card == promql.VectorMatchCardinality.OneToMany:
        return right | extra
    return frozenset(modifier.matching.labels if modifier.matching is not None else ())


def _is_scalar(node: promql.Expr) -> bool:
    match node:
        case promql.NumberLiteral():
            return True
        case promql.ParenExpr() | promql.UnaryExpr():
            return _is_scalar(node.expr)
        case promql.Call():
            return node.func.name in ("time", "scalar", "pi")
        case promql.BinaryExpr():
            return _is_scalar(node.lhs) and _is_scalar(node.rhs)
        case _:
            return False
