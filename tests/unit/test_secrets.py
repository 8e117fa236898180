"""What looks like a secret, by name and by shape, and what does not."""

from __future__ import annotations

import pytest

from stepkeep.secrets import HIDDEN, has_secret, is_secret_name, without_secrets

SHAPED = [
    "sk-proj-" + "a1B2c3D4" * 5,
    "ghp_" + "a1B2c3D4" * 5,
    "github_pat_" + "a1B2c3D4" * 5,
    "glpat-" + "a1B2c3D4" * 3,
    "xoxb-123456789012-abcdefABCDEF",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "a1B2c3D4" * 5,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "https://me:hunter22@example.org/x",
    "redis://:hunter22@cache:6379",
]


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("openai_key", "OPENAI_KEY", "openaiKey", "OPENAI_KEY_2", "aws_secret")),
        *((name, True) for name in ("password", "passwd", "db-password", "client_secret", "clientSecret")),
        *((name, True) for name in ("private_key", "API_KEY", "apiKey", "apikey", "GITHUB_TOKEN", "AUTH")),
        *((name, True) for name in ("aws_access_key_id", "bearer", "github_pat")),
        *((name, True) for name in ("MAX_TOKENS_API_KEY", "ACCESS_TOKENS", "pwd", "creds", "credentials", "ssh.key")),
        *((name, False) for name in ("total_tokens", "max_tokens", "MAX_TOKENS", "token_count", "tokens_per_second")),
        *((name, False) for name in ("key", "keys", "monkey", "keyboard", "author", "path", "patch", "secretary")),
        *((name, False) for name in ("tokenizer", "TOKENIZERS_PARALLELISM", "primary_key", "public_key")),
    ],
)  # fmt: skip
def test_names_that_look_secret(name: str, is_secret: bool) -> None:
    """The usual names of secrets are known, and ordinary words are not taken for them."""
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize("secret", SHAPED)
def test_a_secret_is_known_by_its_shape(secret: str) -> None:
    """Also inside a text, a list or a mapping; nothing that identifies it stays."""
    assert has_secret(secret)
    assert has_secret({"any": ["thing", f"before {secret} after"]})
    hidden = without_secrets(f"before {secret} after")
    assert HIDDEN in hidden
    assert hidden.startswith("before ")
    assert not has_secret(hidden.replace(HIDDEN, ""))
    assert "hunter22" not in hidden
    assert "a1B2c3D4" not in hidden
    assert "MIIE" not in hidden


@pytest.mark.parametrize(
    "text",
    [
        "total_tokens: 12345, max_tokens=4096 --max-tokens 4096",
        "key: value-1234, monkey: banana, keyboard=qwerty, tokenizer: cl100k_base",
        "https://example.org:8080/path?id=1234 and git@github.com:me/repo.git",
        "the risk-averse task-runner asked, disk_usage_is_high_today",
        "cp_20260101T120000000000_abcdefghij, 4f2a91c0d5e6f708192a3b4c5d6e7f8091a2b3c4",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    """Counts of tokens, ids, keys of mappings and addresses without a password."""
    assert without_secrets(text) == text
    assert not has_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "openai_key=hunter22",
        'export GITHUB_PAT="hunter22"',
        "password: hunter22",
        "--client-secret hunter22",
        "Authorization: Bearer hunter22",
        "https://example.org/?max_tokens=5000&token=hunter22",
        "total_tokens: password=hunter22",
    ],
)
def test_a_value_beside_the_name_of_a_secret_is_hidden(text: str) -> None:
    """The name stays, so that one sees what was there."""
    assert without_secrets(text) == text.replace("hunter22", HIDDEN)
