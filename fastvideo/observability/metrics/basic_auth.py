"""Users and passwords of the metrics endpoint, kept as bcrypt hashes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, import_extra

if TYPE_CHECKING:
    from collections.abc import Mapping

_HASH: Final = re.compile(r"\$2[aby]\$(?P<cost>\d\d)\$[./A-Za-z0-9]{53}")
_COSTS: Final = range(4, 32)
_MAX_CHECKED: Final = 128

# Of a password nobody has: unknown users take as long to refuse as known ones.
_NOBODY: Final = "$2b$10$vV6KLQUDi2DzuJqX80hTr.82ac5qu1ZuTvgeFO.sHBLxDfJP5UwZ2"


class Users:
    """Tells whether an Authorization header names a user and that user's password.

    bcrypt is slow on purpose, so what was checked once is remembered, as a keyed hash.

    Args:
        hashes: bcrypt hashes by user.

    Raises:
        ConfigError: A hash is not one of bcrypt.
        MissingExtraError: bcrypt is not installed.
    """

    def __init__(self, hashes: Mapping[str, str]) -> None:
        for user, text in hashes.items():
            match = _HASH.fullmatch(text)
            if match is None or int(match["cost"]) not in _COSTS:
                message = (
                    f"basic_auth_users.{user} is not a bcrypt hash: expected what "
                    "`htpasswd -nBC 10 USER` prints after the colon, beginning with $2y$"
                )
                raise ConfigError(message)
        self._hashes = dict(hashes)
        self._bcrypt: Any = import_extra("bcrypt", extra="metrics-auth")
        self._key = secrets.token_bytes(32)
        self._checked: dict[bytes, bool] = {}

    def allows(self, authorization: str) -> bool:
        """Tells whether the header names a known user and the right password."""
        named = _credentials(authorization)
        if named is None:
            return False
        key = hmac.digest(self._key, b":".join(named), hashlib.sha256)
        allowed = self._checked.get(key)
        if allowed is None:
            allowed = self._check(*named)
            if len(self._checked) >= _MAX_CHECKED:
                del self._checked[next(iter(self._checked))]
            self._checked[key] = allowed
        return allowed

    def _check(self, user: bytes, password: bytes) -> bool:
        known = self._hashes.get(user.decode("utf-8", "replace"))
        try:
            matches = self._bcrypt.checkpw(password, (known or _NOBODY).encode())
        except ValueError:  # a password that bcrypt cannot have hashed
            return False
        return bool(matches) and known is not None


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
