"""The endpoint over real sockets: answers, ports, hostile clients, forks, ends."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from fastvideo.errors import ConfigError
from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.server import MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.metrics.collector import InstrumentsCollector

PROMETHEUS = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}

Serve = Any
Ask = Any
Connect = Any


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits until something holds; fails if it never does."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def test_get_and_head_of_metrics(serve: Serve, ask: Ask) -> None:
    """GET gives the page and HEAD the same headers without it."""
    server = serve()
    page = ask(server)
    head = ask(server, method="HEAD")
    assert (page.status, head.status) == (200, 200)
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'fastvideo_training_steps_total{rank="0",run="run-1"} 3.0\n' in page.text
    assert head.body == b""
    assert head.headers == page.headers
    assert int(head.headers["content-length"]) == len(page.body)


def test_openmetrics_and_gzip_by_request(serve: Serve, ask: Ask) -> None:
    """The headers of the request decide, and those of the response say so."""
    headers = {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}
    page = ask(serve(), headers=headers)
    assert page.headers["content-encoding"] == "gzip"
    assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert '# {span_id="0123456789abcdef",trace_id=' in page.text
    assert page.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics?name[]=x", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/../metrics", 404),
        ("POST", "/", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/metrics", 405),
        ("OPTIONS", "/metrics", 405),
    ],
)
def test_nothing_else_is_served(
    serve: Serve, ask: Ask, method: str, path: str, status: int
) -> None:
    """Other paths are not found, other methods not allowed."""
    answer = ask(serve(), path, method=method)
    assert answer.status == status
    if status == 405:
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nbroken\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, b"431 Request Header Fields Too Large"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200 OK"),
    ],
)
def test_requests_that_no_library_would_send(
    serve: Serve, connect: Connect, request_bytes: bytes, status: bytes
) -> None:
    """Malformed and endless heads are refused; the bare minimum is answered."""
    client = connect(serve())
    client.sendall(request_bytes)
    assert client.recv(100).startswith(b"HTTP/1.1 " + status + b"\r\n")


def test_a_head_that_arrives_in_pieces_is_answered(serve: Serve, connect: Connect) -> None:
    """A request may come byte by byte."""
    client = connect(serve())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
        client.send(bytes((byte,)))
    assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_request_with_a_body_gets_its_whole_answer(serve: Serve, connect: Connect) -> None:
    """What a client sends after the head does not take the answer back from it."""
    client = connect(serve())
    body = b"x" * 500_000
    client.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = b""
    while data := client.recv(65_536):
        answer += data
    assert answer.endswith(b"use GET or HEAD\n")


def test_the_default_address_is_loopback_and_says_where(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Only this machine reaches the endpoint unless somebody asks for more."""
    caplog.set_level(logging.INFO)
    server = serve()
    assert server.address[0] == "127.0.0.1"
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.INFO, f"metrics are served at http://127.0.0.1:{server.address[1]}/metrics")
    ]


def test_any_other_address_without_a_web_config_is_one_warning(
    serve: Serve, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever opens the endpoint to the network is told what that means."""
    server = serve(host="0.0.0.0")  # noqa: S104 - this is what is tested
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "can be read by everybody" in caplog.text
    assert "FASTVIDEO_METRICS_WEB_CONFIG" in caplog.text
    assert ask(server).status == 200


def test_ipv6_is_served(serve: Serve, ask: Ask) -> None:
    """An IPv6 address works, and its URL has brackets."""
    try:
        server = serve(host="::1")
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    assert server.url == f"http://[::1]:{server.address[1]}/metrics"
    assert ask(server).status == 200


def test_eight_ranks_that_want_one_port_all_get_one(
    serve: Serve, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """A taken port falls to the next free one, said once by each that had to move."""
    first = serve()
    port = first.address[1]
    servers = [first, *(serve(port=port) for _ in range(7))]
    ports = [server.address[1] for server in servers]
    assert ports == sorted(set(ports))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 7
    assert f"port {port} is taken; metrics are served at http://127.0.0.1:" in caplog.text
    assert {ask(server).status for server in servers} == {200}


def test_the_last_ports_are_not_overrun(serve: Serve) -> None:
    """Past the highest port any free one is taken."""
    servers = [serve(port=65_535), serve(port=65_535)]
    assert servers[0].address != servers[1].address


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("no.such.host.invalid", 0)])
def test_an_address_of_another_machine_is_an_error(
    collector: InstrumentsCollector, host: str, port: int
) -> None:
    """The error names the host and what was expected."""
    with pytest.raises(ConfigError, match=rf"cannot listen on '{host}'.*expected a name or an"):
        MetricsServer(collector, host=host, port=port).start()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist_is_an_error(collector: InstrumentsCollector, port: int) -> None:
    """The error names the port and the range."""
    with pytest.raises(ConfigError, match=f"port {port} .* does not exist; expected 0 to 65535"):
        MetricsServer(collector, port=port).start()


def test_start_and_stop_are_idempotent(collector: InstrumentsCollector) -> None:
    """Starting twice is one endpoint; stopping twice is silent; it can be started again."""
    server = MetricsServer(collector, port=0)
    server.stop()
    assert server.start() == server.start()
    address = server.address
    assert address is not None
    server.stop()
    server.stop()
    assert server.address is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=1.0)
    server.start()
    server.stop()


@pytest.mark.alone
def test_stop_is_quick_beside_open_connections(serve: Serve, connect: Connect) -> None:
    """Clients that hang on do not hold up the end."""
    server = serve()
    clients = [connect(server) for _ in range(20)]
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 1.0
    clients[0].settimeout(5.0)
    with contextlib.suppress(ConnectionResetError):
        assert clients[0].recv(1) == b""


def test_silent_and_slow_clients_block_nobody(serve: Serve, ask: Ask, connect: Connect) -> None:
    """Beside fifty clients that say nothing, half a word, or read nothing, scrapes go on."""
    server = serve()
    threads = threading.active_count()
    for number in range(50):
        client = connect(server)
        if number % 3 == 1:
            client.sendall(b"GET /met")
        if number % 3 == 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    start = time.monotonic()
    assert [ask(server).status for _ in range(20)] == [200] * 20
    assert time.monotonic() - start < 5.0
    assert threading.active_count() == threads
    assert len(server._open._clients) <= 32


def test_a_client_that_takes_too_long_is_given_up(serve: Serve, connect: Connect) -> None:
    """However slowly it sends, the deadline counts from the connection."""
    server = serve(client_timeout_s=0.3)
    client = connect(server)
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in b"GET /metrics HTTP/1.1\r\n" * 1000:
            client.send(bytes((byte,)))
            time.sleep(0.02)
    assert 0.2 < time.monotonic() - start < 5.0
    wait_for(lambda: not server._open._clients)


def test_a_client_that_never_closes_is_given_up(serve: Serve, connect: Connect) -> None:
    """After the answer a client that keeps its end open is not kept."""
    server = serve()
    client = connect(server)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert client.recv(15) == b"HTTP/1.1 404 No"
    wait_for(lambda: not server._open._clients)


def test_running_out_of_file_descriptors_is_survived(
    serve: Serve, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused accept is one warning and a pause, not a busy loop and not the end."""
    server = serve()
    accept = socket.socket.accept
    failures = iter([True, True])

    def refuse(self: socket.socket) -> Any:
        if next(failures, False):
            raise OSError(24, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    assert ask(server).status == 200
    assert caplog.text.count("could not be accepted") == 1


def test_a_failing_page_is_500_and_said_once(
    serve: Serve, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in a scrape, the endpoint and the run go on."""
    server = serve()
    with monkeypatch.context() as broken:
        broken.setattr(Instruments, "snapshot", lambda self: 1 / 0)
        assert [ask(server).status for _ in range(3)] == [500] * 3
    assert ask(server).status == 200
    assert len(caplog.records) == 1


def test_a_source_that_raises_leaves_the_rest(
    serve: Serve, ask: Ask, instruments: Instruments
) -> None:
    """One bad source costs its family, not the scrape."""
    instruments.gauge_source("fastvideo_device_memory_bytes", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    page = ask(serve())
    assert page.status == 200
    assert "fastvideo_device_memory_bytes" not in page.text
    assert "fastvideo_training_steps_total" in page.text


def test_a_slow_source_delays_its_scrape_and_no_writer(
    serve: Serve, ask: Ask, instruments: Instruments
) -> None:
    """While a scrape waits for a source, cells are written as ever."""
    asked, answer = threading.Event(), threading.Event()

    def read() -> list[tuple[tuple[str, ...], float]]:
        asked.set()
        answer.wait(10)
        return [(("peak",), 1.0)]

    instruments.gauge_source("fastvideo_device_memory_bytes", read)
    server = serve()
    scrape = threading.Thread(target=ask, args=(server,))
    scrape.start()
    assert asked.wait(10)
    start = time.monotonic()
    for _ in range(1000):
        instruments.counter("fastvideo_training_steps_total").add()
    assert time.monotonic() - start < 1.0
    answer.set()
    scrape.join()


def _scrape(ask: Ask, server: MetricsServer) -> None:
    """Scrapes as Prometheus does; returns when the endpoint knows that its answer has arrived."""
    ask(server, headers=PROMETHEUS)
    ask(server, method="HEAD")  # there is one thread, and it comes to this afterwards


def test_lingering_ends_with_the_second_scrape(serve: Serve, ask: Ask) -> None:
    """At the end of a run the last state is served until it was seen twice."""
    server = serve()
    for _ in range(3):
        ask(server)
        time.sleep(0.2)
    waiting = threading.Event()
    results: list[bool] = []

    def linger() -> None:
        waiting.set()
        results.append(server.linger(scrapes=2, limit_s=30.0))

    thread = threading.Thread(target=linger)
    thread.start()
    assert waiting.wait(5)
    while thread.is_alive():
        ask(server)
        thread.join(0.05)
    assert results == [True]


@pytest.mark.alone
def test_lingering_waits_for_nobody_who_does_not_scrape(serve: Serve, ask: Ask) -> None:
    """Without regular scrapes, or when they stop, the end comes at once or after their rhythm."""
    server = serve()
    start = time.monotonic()
    assert not server.linger()
    for _ in range(2):
        ask(server)
        assert not server.linger()
    assert time.monotonic() - start < 1.0
    _scrape(ask, server)
    assert not server.linger(limit_s=0.2)
    server.stop()
    assert not server.linger()


def test_the_log_says_what_is_waited_for_and_how_to_skip_it(
    serve: Serve, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """One line before, with both ways out, and one after."""
    caplog.set_level("INFO", "fastvideo")
    server = serve()
    _scrape(ask, server)
    assert not server.linger(scrapes=1, limit_s=7.0, is_over=lambda: True)
    before, after = caplog.messages[-2:]
    assert "waiting up to 7 s for its last numbers to be scraped" in before
    assert "Ctrl-C" in before
    assert "FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS=0" in before
    assert after == "the last numbers were not scraped"


def test_a_wait_in_vain_is_explained(
    serve: Serve, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """Who scrapes too rarely for the setting learns from the log what to set."""
    caplog.set_level("INFO", "fastvideo")
    server = serve()
    _scrape(ask, server)
    time.sleep(0.3)
    _scrape(ask, server)
    assert not server.linger(scrapes=1, limit_s=0.05)
    assert "FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS" in caplog.messages[-1]
    assert "will not be scraped" in caplog.messages[-1]


def test_two_hundred_starts_leave_nothing_behind(collector: InstrumentsCollector) -> None:
    """Threads, descriptors and memory are the same after two hundred endpoints."""

    def cycle() -> None:
        server = MetricsServer(collector, port=0)
        server.start()
        server.stop()

    for _ in range(50):
        cycle()
    gc.collect()
    me = psutil.Process()
    before = (me.num_fds(), threading.active_count(), me.memory_info().rss)
    for _ in range(200):
        cycle()
    gc.collect()
    after = (me.num_fds(), threading.active_count(), me.memory_info().rss)
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 2_000_000


def test_forked_children_have_no_part_of_the_endpoint() -> None:
    """Fifty forks beside scrapes: no socket, no thread, no noise, and no long wait."""
    script = Path(__file__).with_name("fork_beside_server.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["statuses"] == [0] * 50
    assert (found["started_in_child"], found["scraped"]) == (0, "xx")
    assert found["seconds"] < 2.0 + 2 * found["seconds_without"]


@pytest.mark.alone
def test_programs_that_are_started_inherit_no_socket(serve: Serve) -> None:
    """A program that the run starts, even with all descriptors, does not hold the port."""
    server = serve()
    port = server.address[1]
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
    )
    try:
        server.stop()
        listener = socket.create_server(("127.0.0.1", port))
        listener.close()
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize("how", ["return", "os.kill(os.getpid(), 15)", "stop_late()"])
def test_a_process_ends_at_once_and_silently(how: str) -> None:
    """An endpoint that nobody stops delays no exit and says nothing."""
    code = (
        "import atexit, os, sys, socket, time\n"
        "from fastvideo.observability.metrics.accumulators import Instruments\n"
        "from fastvideo.observability.metrics.collector import InstrumentsCollector\n"
        "from fastvideo.observability.metrics.server import MetricsServer\n"
        "server = MetricsServer(InstrumentsCollector(Instruments(), {}), port=0)\n"
        "held = socket.create_connection(server.start())\n"
        "print(time.time(), flush=True)\n"
        "def stop_late(): atexit.register(server.stop)\n"
        f"def main(): {how}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == (-15 if "kill" in how else 0)
    assert done.stderr == ""
    assert time.time() - float(done.stdout) < 5.0


@pytest.mark.alone
def test_a_start_takes_no_time(collector: InstrumentsCollector) -> None:
    """Nothing is looked up over the network, and nothing heavy is loaded."""
    server = MetricsServer(collector, port=0)
    start = time.monotonic()
    server.start()
    seconds = time.monotonic() - start
    server.stop()
    assert seconds < 0.2
