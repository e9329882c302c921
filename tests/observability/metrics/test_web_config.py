"""web-config.yml: what is honoured, what is refused, and the endpoint behind it."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest

from fastvideo.errors import ConfigError
from fastvideo.observability.metrics.web_config import WebConfig, load_web_config

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.observability.metrics.collector import InstrumentsCollector

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
AUTHORIZATION = {"Authorization": "Basic cHJvbWV0aGV1czpzZWNyZXQ="}
PAIR = "tls_server_config: {cert_file: server.pem, key_file: server.key"

Serve = Any
Ask = Any
Connect = Any


def write(directory: Path, text: str) -> Path:
    """Writes a web-config.yml."""
    path = directory / "web-config.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def files(certificates: Any, tmp_path: Path) -> Path:
    """Gives a directory with a copy of the certificates."""
    shutil.copytree(certificates.directory, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("text", ["", "{}", "basic_auth_users:", "basic_auth_users: {}"])
def test_an_empty_file_protects_nothing(tmp_path: Path, text: str) -> None:
    """A file that asks for nothing is plain HTTP for everybody."""
    config = load_web_config(write(tmp_path, text))
    assert config == WebConfig()
    assert (config.protects, config.scheme) == (False, "http")
    assert config.allows_credentials("")
    assert config.allows_certificate(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_config: {}", r"no key tls_config; .*Did you mean 'tls_server_config'\?"),
        ("basic_auth_user: {}", r"no key basic_auth_user; .*Did you mean 'basic_auth_users'\?"),
        ("1: 2", "no key 1; expected some of basic_auth_users, tls_server_config"),
        ("http_server_config: {http2: true}", "http_server_config is not supported .* remove it"),
        ("rate_limit: {}", "rate_limit is not supported"),
        ("- a", "the file: expected keys and values, got list"),
        ("tls_server_config: []", "tls_server_config: expected keys and values, got list"),
        ("tls_server_config: {}", "tls_server_config needs cert_file and key_file"),
        ("tls_server_config: {cert_file: a}", "needs cert_file and key_file"),
        ("tls_server_config: {cert_fil: a}", r"no key tls_server_config\.cert_fil; .*'cert_file'"),
        ("tls_server_config: {cipher_suites: []}", r"tls_server_config\.cipher_suites is not supp"),
        ("tls_server_config: {cert_file: 1, key_file: b}", "cert_file: expected a path, got 1"),
        (f"{PAIR}, client_auth_type: Always}}", "expected one of NoClientCert, .*got 'Always'"),
        (f"{PAIR}, client_auth_type: RequireAnyClientCert}}", "any certificate, unverified"),
        (f"{PAIR}, client_auth_type: RequireAndVerifyClientCert}}", "client_ca_file goes with"),
        (f"{PAIR}, client_ca_file: ca.pem}}", "client_ca_file goes with a client_auth_type"),
        (f"{PAIR}, client_allowed_sans: [a]}}", "client_allowed_sans with RequireAndVerify"),
        (f"{PAIR}, client_allowed_sans: a}}", "client_allowed_sans: expected a list of names"),
        (f"{PAIR}, min_version: TLS10}}", r"min_version: expected one of TLS12, TLS13, got"),
        (f"{PAIR}, min_version: TLS13, max_version: TLS12}}", "min_version is above max_version"),
        (f"{PAIR}}}", "tls_server_config cannot be used: .*No such file"),
        ("basic_auth_users: [a]", "basic_auth_users: expected keys and values, got list"),
        ("basic_auth_users: {a: 1}", "expected 'user: bcrypt hash', got the user 'a'"),
        ("basic_auth_users: {'a:b': x}", "got the user 'a:b'"),
        ("basic_auth_users: {a: plain}", r"basic_auth_users\.a is not a bcrypt hash"),
    ],
)
def test_wrong_keys_and_values_are_errors(tmp_path: Path, text: str, message: str) -> None:
    """Every error names the file and the key: an endpoint never opens wider than was meant."""
    with pytest.raises(ConfigError, match=message) as caught:
        load_web_config(write(tmp_path, text))
    assert str(caught.value).startswith(f"web config {tmp_path / 'web-config.yml'}: ")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    with pytest.raises(ConfigError, match=r"missing\.yml: cannot be read: No such file"):
        load_web_config(tmp_path / "missing.yml")


def test_broken_yaml_is_an_error_that_shows_no_secret(tmp_path: Path) -> None:
    """The line is named, and what stands in it is not quoted."""
    with pytest.raises(ConfigError, match="is not YAML in line 3") as caught:
        load_web_config(write(tmp_path, f"basic_auth_users:\n  a: {HASH}\n b: '{HASH}\n"))
    assert HASH not in str(caught.value)
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_web_config(tmp_path / "binary.yml")


@pytest.mark.integration
def test_broken_certificates_are_errors(files: Path) -> None:
    """A key that does not belong to the certificate, or is encrypted, is found at start."""
    shutil.copy(files / "stranger.key", files / "server.key")
    with pytest.raises(ConfigError, match=r"key_file .*server\.key.*"):
        load_web_config(write(files, f"{PAIR}}}"))
    (files / "server.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with pytest.raises(ConfigError, match="cannot be used"):
        load_web_config(write(files, f"{PAIR}}}"))


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic cHJvbWV0aGV1czp3cm9uZw=="}])
def test_without_the_password_nothing_is_told(
    tmp_path: Path, serve: Serve, ask: Ask, headers: dict[str, str]
) -> None:
    """Neither pages nor the existence of paths; with it, everything as ever."""
    config = load_web_config(write(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    server = serve(web_config=config)
    for path in ("/metrics", "/other"):
        answer = ask(server, path, headers=headers)
        assert (answer.status, answer.body) == (401, b"user and password needed\n")
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert ask(server, headers=AUTHORIZATION).status == 200
    assert ask(server, "/other", headers=AUTHORIZATION).status == 404


def test_protection_silences_the_warning(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """With users, an open address is no reason to warn."""
    config = load_web_config(write(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    serve(host="0.0.0.0", web_config=config)  # noqa: S104 - this is what is tested
    assert caplog.records == []


@pytest.mark.integration
def test_tls_is_served(files: Path, serve: Serve, ask: Ask, certificates: Any) -> None:
    """Clients that trust the authority are served over TLS; others get nothing."""
    server = serve(web_config=load_web_config(write(files, f"{PAIR}}}")))
    assert server.url == f"https://127.0.0.1:{server.address[1]}/metrics"
    page = ask(server, context=certificates.context())
    assert page.status == 200
    assert page.text.endswith("\n")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, context=ssl.create_default_context())
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(server)
    assert ask(server, context=certificates.context()).status == 200


@pytest.mark.integration
def test_old_protocols_are_refused(files: Path, serve: Serve, ask: Ask, certificates: Any) -> None:
    """min_version decides what is spoken."""
    server = serve(web_config=load_web_config(write(files, f"{PAIR}, min_version: TLS13}}")))
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        ask(server, context=context)
    assert ask(server, context=certificates.context()).status == 200


@pytest.mark.integration
def test_client_certificates_are_required(
    files: Path, serve: Serve, ask: Ask, certificates: Any
) -> None:
    """With RequireAndVerifyClientCert only clients of the authority get an answer."""
    text = f"{PAIR}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}}"
    server = serve(web_config=load_web_config(write(files, text)))
    assert ask(server, context=certificates.context("prometheus")).status == 200
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        ask(server, context=certificates.context())


@pytest.mark.integration
def test_client_certificates_may_be_optional(
    files: Path, serve: Serve, ask: Ask, certificates: Any
) -> None:
    """With VerifyClientCertIfGiven a client without one is served too."""
    text = f"{PAIR}, client_ca_file: ca.pem, client_auth_type: VerifyClientCertIfGiven}}"
    server = serve(web_config=load_web_config(write(files, text)))
    assert ask(server, context=certificates.context()).status == 200
    assert ask(server, context=certificates.context("prometheus")).status == 200


@pytest.mark.integration
def test_only_allowed_names_of_clients(
    files: Path, serve: Serve, ask: Ask, certificates: Any
) -> None:
    """client_allowed_sans keeps out what the authority signed for somebody else."""
    text = (
        f"{PAIR}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert, "
        "client_allowed_sans: [prometheus.example]}"
    )
    server = serve(web_config=load_web_config(write(files, text)))
    assert ask(server, context=certificates.context("prometheus")).status == 200
    assert ask(server, context=certificates.context("stranger")).status == 403


@pytest.mark.integration
def test_silent_tls_clients_block_nobody(
    files: Path, serve: Serve, ask: Ask, connect: Connect, certificates: Any
) -> None:
    """Beside fifty clients that never finish their handshake, scrapes go on in one thread."""
    server = serve(web_config=load_web_config(write(files, f"{PAIR}}}")))
    threads = threading.active_count()
    for number in range(50):
        client = connect(server)
        if number % 2:
            client.sendall(b"\x16\x03\x01\x02\x00\x01")
    start = time.monotonic()
    statuses = [ask(server, context=certificates.context()).status for _ in range(10)]
    assert statuses == [200] * 10
    assert time.monotonic() - start < 5.0
    assert threading.active_count() == threads


@pytest.mark.integration
def test_clients_that_leave_during_the_handshake_do_no_harm(
    files: Path, serve: Serve, ask: Ask, connect: Connect, certificates: Any
) -> None:
    """A connection reset at any moment is forgotten without a word."""
    server = serve(web_config=load_web_config(write(files, f"{PAIR}}}")))
    for _ in range(300):
        client = connect(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert ask(server, context=certificates.context()).status == 200


@pytest.mark.integration
def test_a_renewed_certificate_is_used(
    files: Path, serve: Serve, ask: Ask, certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A run outlives its certificate: changed files count, and broken ones are survived."""
    server = serve(web_config=load_web_config(write(files, f"{PAIR}}}")))

    def subject() -> Any:
        context = certificates.context()
        context.check_hostname = False
        with (
            socket.create_connection(server.address, timeout=5) as raw,
            context.wrap_socket(raw) as client,
        ):
            certificate = client.getpeercert()
            assert certificate is not None
            return dict(pair[0] for pair in certificate["subject"])["commonName"]

    assert subject() == "server"
    for kind in ("pem", "key"):
        shutil.copy(files / f"stranger.{kind}", files / f"server.{kind}")
        os.utime(files / f"server.{kind}", ns=(1, 1))
    assert subject() == "stranger"
    (files / "server.pem").write_text("nonsense")
    assert subject() == "stranger"
    assert caplog.text.count("keeps its old certificate") == 1


def test_users_over_plain_http_stay_a_choice(
    tmp_path: Path, collector: InstrumentsCollector
) -> None:
    """As in the exporter-toolkit, users may be asked for without TLS."""
    config = load_web_config(write(tmp_path, f"basic_auth_users: {{prometheus: {HASH}}}"))
    assert (config.protects, config.scheme) == (True, "http")
