"""The exporter-toolkit's web-config.yml: TLS, client certificates and users of the endpoint.

What the file asks for is done or refused, never passed over: a key that this endpoint cannot
honour would leave it open in a way that nobody expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, did_you_mean, import_extra
from fastvideo.observability.metrics.basic_auth import Users
from fastvideo.observability.metrics.tls import CLIENT_AUTH, VERSIONS, TlsContexts, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_SECTIONS: Final = ("basic_auth_users", "tls_server_config")
_TLS_KEYS: Final = (
    "cert_file",
    "client_allowed_sans",
    "client_auth_type",
    "client_ca_file",
    "key_file",
    "max_version",
    "min_version",
)
_TOOLKIT_ONLY: Final = frozenset(
    {
        "cert",
        "cipher_suites",
        "client_ca",
        "curve_preferences",
        "http_server_config",
        "key",
        "prefer_server_cipher_suites",
        "rate_limit",
    }
)
_CLIENT_AUTH_ONLY_THERE: Final = frozenset({"RequestClientCert", "RequireAnyClientCert"})


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Who may use the endpoint.

    Attributes:
        tls: TLS contexts; None: plain HTTP.
        users: Users and their passwords; None: everybody.
    """

    tls: TlsContexts | None = None
    users: Users | None = None

    @property
    def protects(self) -> bool:
        """Whether it keeps anybody out, or anything secret."""
        return self.tls is not None or self.users is not None

    @property
    def scheme(self) -> str:
        """``https`` or ``http``."""
        return "http" if self.tls is None else "https"

    def allows_credentials(self, authorization: str) -> bool:
        """Tells whether a request with this Authorization header is answered."""
        return self.users is None or self.users.allows(authorization)

    def allows_certificate(self, certificate: Mapping[str, Any] | None) -> bool:
        """Tells whether a client with this certificate, as ``getpeercert`` has it, is answered."""
        allowed = frozenset() if self.tls is None else self.tls.settings.allowed_sans
        if not allowed:
            return True
        names = {value for _, value in (certificate or {}).get("subjectAltName", ())}
        return not allowed.isdisjoint(names)


def load_web_config(path: Path) -> WebConfig:
    """Reads a web-config.yml.

    Args:
        path: The file; paths in it are relative to its directory.

    Raises:
        ConfigError: It cannot be read, or says something that cannot be done; the message names
            the key, and never a secret.
        MissingExtraError: It needs a package that is not installed.
    """
    try:
        document = _parse(path)
        _check_keys(document, _SECTIONS, "")
        tls = document.get("tls_server_config")
        users = _users(document.get("basic_auth_users"))
        return WebConfig(
            tls=None if tls is None else TlsContexts(_tls_settings(tls, path.absolute().parent)),
            users=Users(users) if users else None,
        )
    except ConfigError as error:
        message = f"web config {path}: {error}"
        raise ConfigError(message) from error


def _parse(path: Path) -> dict[str, Any]:
    yaml = import_extra("yaml", extra="metrics-auth")
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = "is not UTF-8"
        raise ConfigError(message) from error
    except yaml.YAMLError as error:
        # Its own text quotes the line, which may hold a hash.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        message = f"is not YAML{where}: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        raise ConfigError(message) from None
    return _mapping({} if document is None else document, "the file")


def _users(section: object) -> dict[str, str]:
    users = _mapping({} if section is None else section, "basic_auth_users")
    for user, text in users.items():
        if not isinstance(user, str) or not isinstance(text, str) or not user or ":" in user:
            message = f"basic_auth_users: expected 'user: bcrypt hash', got the user {user!r}"
            raise ConfigError(message)
    return users


def _tls_settings(section: object, base: Path) -> TlsSettings:
    tls = _mapping(section, "tls_server_config")
    _check_keys(tls, _TLS_KEYS, "tls_server_config.")
    cert, key, ca = (_file(tls, name, base) for name in ("cert_file", "key_file", "client_ca_file"))
    if cert is None or key is None:
        message = "tls_server_config needs cert_file and key_file"
        raise ConfigError(message)
    auth = _choice(tls, "client_auth_type", CLIENT_AUTH, "NoClientCert")
    sans = tls.get("client_allowed_sans") or []
    if not isinstance(sans, list) or not all(isinstance(name, str) for name in sans):
        message = f"tls_server_config.client_allowed_sans: expected a list of names, got {sans!r}"
        raise ConfigError(message)
    required = auth == CLIENT_AUTH["RequireAndVerifyClientCert"]
    if (auth == CLIENT_AUTH["NoClientCert"]) != (ca is None) or (sans and not required):
        message = (
            "tls_server_config: client_ca_file goes with a client_auth_type other than "
            "NoClientCert, and client_allowed_sans with RequireAndVerifyClientCert"
        )
        raise ConfigError(message)
    minimum = _choice(tls, "min_version", VERSIONS, "TLS12")
    maximum = _choice(tls, "max_version", VERSIONS, "TLS13")
    if minimum > maximum:
        message = "tls_server_config: min_version is above max_version"
        raise ConfigError(message)
    return TlsSettings(cert, key, ca, auth, frozenset(sans), minimum, maximum)


def _file(tls: Mapping[str, Any], name: str, base: Path) -> Path | None:
    value = tls.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        message = f"tls_server_config.{name}: expected a path, got {value!r}"
        raise ConfigError(message)
    return base / value


def _choice(tls: Mapping[str, Any], name: str, choices: Mapping[str, Any], default: str) -> Any:  # noqa: ANN401
    value = tls.get(name) or default
    if value in choices:
        return choices[value]
    known = value in _CLIENT_AUTH_ONLY_THERE
    why = (
        " It would take any certificate, unverified, which is not supported here." if known else ""
    )
    message = (
        f"tls_server_config.{name}: expected one of {', '.join(choices)}, got {value!r}."
        f"{why or did_you_mean(str(value), choices)}"
    )
    raise ConfigError(message)


def _check_keys(section: Mapping[str, Any], known: Collection[str], prefix: str) -> None:
    for key in section:
        if key in known:
            continue
        if key in _TOOLKIT_ONLY:
            message = f"{prefix}{key} is not supported by this endpoint; remove it"
            raise ConfigError(message)
        message = (
            f"there is no key {prefix}{key}; expected some of {', '.join(known)}."
            f"{did_you_mean(str(key), known)}"
        )
        raise ConfigError(message)


def _mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"{name}: expected keys and values, got {type(value).__name__}"
        raise ConfigError(message)
    return value
