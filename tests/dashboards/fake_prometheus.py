"""A server that answers as Prometheus does, with made-up series."""

from __future__ import annotations

import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_LABELS = re.compile(r"by \(([\w, ]+)\)")


class FakePrometheus:
    """Answers every expression with a series for each of two ranks, on a free port.

    An expression that says `nothing` has no series, one that says `refused` is an error.

    Attributes:
        url: Where it is.
        asked: Path and parameters of every question.
    """

    def __init__(self) -> None:
        asked: list[tuple[str, dict[str, list[str]]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                asked.append((parts.path, query))
                status, answer = _answer(parts.path.removeprefix("/api/v1/"), query)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Says nothing."""

        self.asked = asked
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _answer(  # noqa: PLR0911 - one for each path
    path: str, query: dict[str, list[str]]
) -> tuple[int, Any]:
    expr = query.get("query", [""])[0]
    if "refused" in expr:
        return 400, {"status": "error", "errorType": "bad_data", "error": "parse error"}
    if path.startswith("label/"):
        label = path.split("/")[1]
        values = {"rank": ["0", "10", "2"], "run": ["a", "b"]}.get(label, [label])
        return 200, _data(values)
    if path == "status/config":
        return 200, _data({"yaml": "global:\n  scrape_timeout: 2s\n  scrape_interval: 5s\n"})
    if path == "alerts":
        return 200, _data({"alerts": [{"state": "firing", "labels": {"alertname": "A"}}]})
    if path == "query_exemplars":
        exemplar = {"labels": {"trace_id": "t"}, "value": "1", "timestamp": 3.5}
        return 200, _data([{"seriesLabels": {"rank": "0"}, "exemplars": [exemplar]}])
    if path == "query" and expr == "scalar(1)":
        return 200, _data({"resultType": "scalar", "result": [7.0, "1"]})
    if path == "query":
        at = float(query["time"][0])
        series = [{"metric": labels, "value": [at, "0.25"]} for labels in _series(expr)]
        return 200, _data({"resultType": "vector", "result": series})
    if path == "query_range":
        return 200, _data({"resultType": "matrix", "result": _matrix(expr, query)})
    return 404, {"nobody": "knows"}


def _matrix(expr: str, query: dict[str, list[str]]) -> list[dict[str, Any]]:
    start, end, step = (float(query[name][0]) for name in ("start", "end", "step"))
    times = [start + index * step for index in range(int((end - start) / step) + 1)]
    return [
        {
            "metric": labels,
            "values": [[at, f"{0.5 + 0.3 * math.sin(at / 300 + number):.4f}"] for at in times],
        }
        for number, labels in enumerate(_series(expr))
    ]


def _series(expr: str) -> list[dict[str, str]]:
    if "nothing" in expr:
        return []
    if "le" in [name.strip() for names in _LABELS.findall(expr) for name in names.split(",")]:
        return [{"le": bound} for bound in ("0.5", "1", "2", "+Inf")]
    kind = {"run": "a", "region": "training_forward", "step_kind": "critic", "host": "node0"}
    ranks = (1, 0) if expr.startswith("sort_desc") else (0, 1)
    return [{"rank": str(rank), **kind} for rank in ranks]


def _data(data: Any) -> dict[str, Any]:
    return {"status": "success", "data": data}
