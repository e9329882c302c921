"""Users and passwords of the endpoint."""

from __future__ import annotations

import base64
import builtins
from typing import Any

import bcrypt
import pytest

from fastvideo.errors import ConfigError, MissingExtraError
from fastvideo.observability.metrics.basic_auth import Users


def hashed(password: bytes, prefix: bytes = b"2b") -> str:
    """Returns a cheap bcrypt hash."""
    return (
        bcrypt.hashpw(password, bcrypt.gensalt(4)).replace(b"$2b$", b"$" + prefix + b"$").decode()
    )


def basic(user: str, password: str) -> str:
    """Returns the value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def users() -> Users:
    """Gives two users."""
    return Users({"prometheus": hashed(b"secret"), "größe": hashed(b"a:b", b"2y")})


@pytest.mark.parametrize(
    ("authorization", "allowed"),
    [
        (basic("prometheus", "secret"), True),
        (basic("prometheus", "secret").replace("Basic ", "basic   "), True),
        (basic("größe", "a:b"), True),
        (basic("prometheus", "Secret"), False),
        (basic("prometheus", ""), False),
        (basic("prometheus", "x" * 100), False),
        (basic("nobody", "secret"), False),
        (basic("", ""), False),
        ("", False),
        ("Basic", False),
        ("Basic !!!", False),
        ("Basic cHJvbWV0aGV1cw==", False),
        ("Bearer " + basic("prometheus", "secret")[6:], False),
    ],
)
def test_only_known_users_with_their_password_are_allowed(
    users: Users, authorization: str, *, allowed: bool
) -> None:
    """Every other header is refused, and never raises; a second look says the same."""
    assert [users.allows(authorization) for _ in range(2)] == [allowed, allowed]


def test_a_password_is_checked_once(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bcrypt is slow on purpose; what it said is remembered, without the password."""
    checks: list[bytes] = []
    check = bcrypt.checkpw

    def counted(password: bytes, text: bytes) -> bool:
        checks.append(password)
        return check(password, text)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    for _ in range(5):
        assert users.allows(basic("prometheus", "secret"))
        assert not users.allows(basic("prometheus", "wrong"))
    assert checks == [b"secret", b"wrong"]
    assert b"secret" not in repr(users._checked).encode()


def test_an_unknown_user_is_checked_like_a_known_one(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a refusal does not tell whether the user exists."""
    checked: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, text: checked.append(text) or True)
    assert not users.allows(basic("nobody", "secret"))
    assert len(checked) == 1


def test_what_is_remembered_is_bounded(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing passwords does not fill the memory."""
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, text: False)
    for number in range(1000):
        users.allows(basic("prometheus", str(number)))
    assert len(users._checked) <= 128


@pytest.mark.parametrize(
    "text",
    ["secret", "", "$apr1$abc$def", "$2y$10$short", "$2y$99$" + "a" * 53, "$2y$10$" + "a" * 54],
)
def test_what_is_no_bcrypt_hash_is_refused_and_not_shown(text: str) -> None:
    """The error names the user and how to make a hash, and keeps what was given to itself."""
    with pytest.raises(ConfigError, match=r"basic_auth_users\.me is not a bcrypt hash") as caught:
        Users({"me": text})
    assert not text or text not in str(caught.value)


def test_bcrypt_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error says what to install."""
    load = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "bcrypt":
            raise ModuleNotFoundError(name=name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(MissingExtraError, match="it belongs to the extra 'metrics-auth'"):
        Users({"me": hashed(b"x")})
