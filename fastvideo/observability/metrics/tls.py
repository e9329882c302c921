"""TLS of the metrics endpoint: contexts built from files, and built again when the files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from pathlib import Path

logger = init_logger(__name__)

CLIENT_AUTH: Final[dict[str, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
VERSIONS: Final[dict[str, ssl.TLSVersion]] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}


class ServerSocket(ssl.SSLSocket):
    """A TLS socket that can be made for a client which has left already; its handshake fails."""

    def getpeername(self) -> object:
        """Returns the client's address, or None for a client that has left.

        Where this raises, ``wrap_socket`` raises too, and nobody can close what it had begun.
        """
        try:
            return super().getpeername()
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What TLS needs.

    Attributes:
        cert_file: Certificate chain of the endpoint, PEM.
        key_file: Its private key, PEM, not encrypted.
        client_ca_file: Authorities whose client certificates are accepted, PEM; None: none.
        client_auth: Whether a client must show a certificate.
        allowed_sans: If any: names of which a client's certificate must have one.
        minimum: Oldest protocol version.
        maximum: Newest protocol version.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    allowed_sans: frozenset[str] = frozenset()
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    maximum: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED

    def build_context(self) -> ssl.SSLContext:
        """Returns a new server context.

        Raises:
            ConfigError: A file cannot be read, or does not hold what it should.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslsocket_class = ServerSocket
        context.minimum_version = self.minimum
        context.maximum_version = self.maximum
        try:
            # Without a password function OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password=_refuse_encrypted)
            if self.client_ca_file is not None:
                context.load_verify_locations(self.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            message = (
                f"tls_server_config cannot be used: {error} (cert_file {self.cert_file}, "
                f"key_file {self.key_file}, client_ca_file {self.client_ca_file})"
            )
            raise ConfigError(message) from error
        context.verify_mode = self.client_auth
        return context

    def files(self) -> list[Path]:
        """Returns the files that a context is built from."""
        files = [self.cert_file, self.key_file]
        return files if self.client_ca_file is None else [*files, self.client_ca_file]


@dataclass(slots=True)
class TlsContexts:
    """Gives the context for new connections, so that a run outlives its first certificate.

    Args:
        settings: What contexts are built from.
    """

    settings: TlsSettings
    _state: tuple[tuple[int, ...], ssl.SSLContext] = field(init=False)

    def __post_init__(self) -> None:
        self._state = (self._modified(), self.settings.build_context())

    def current(self) -> ssl.SSLContext:
        """Returns a context that holds what the files held when they last changed.

        A changed file that cannot be used is reported, and the last good context is kept.
        """
        modified, context = self._state
        now = self._modified()
        if now != modified:
            try:
                context = self.settings.build_context()
            except ConfigError as error:
                logger.warning("the metrics endpoint keeps its old certificate: %s", error)
            self._state = (now, context)
        return context

    def _modified(self) -> tuple[int, ...]:
        return tuple(_modified_ns(path) for path in self.settings.files())


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _refuse_encrypted() -> str:
    message = "the key file is encrypted: give one that is not"
    raise ConfigError(message)
