"""Keys of a project: made once, kept private, rotated by their ids."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.settings import load_settings
from sagas.settings.signing_keys import KEY_FILE, SigningKeys

OLD, NEW = "o" * 32, "n" * 32


def test_concurrent_commands_make_one_private_key(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text("")
    settings = load_settings(tmp_path, env={})
    assert settings.signing_keys(create=False) == SigningKeys()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: settings.signing_keys(), range(8)))
    assert len({keys.ids for keys in made}) == 1
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert (tmp_path / ".saga" / ".gitignore").read_text() == "*\n"
    assert {path.name for path in (tmp_path / ".saga").iterdir()} == {".gitignore", "definition.key"}


def test_the_first_key_signs_and_all_verify(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{NEW}\n{OLD}\n")
    (tmp_path / "saga.toml").write_text('[worker]\ndefinition_key = { file = "keys" }\n')
    keys = load_settings(tmp_path, env={}).signing_keys()
    assert keys.shared
    assert not (tmp_path / KEY_FILE).exists()
    for key in (OLD, NEW):
        assert keys.verifies("start", b"x", SigningKeys((key,)).sign("start", b"x"))
    signature = keys.sign("start", b"x")
    assert signature is not None
    assert signature["key"] == SigningKeys((NEW,)).ids[0]
    assert not SigningKeys((OLD,)).verifies("start", b"x", signature)
    assert not keys.verifies("start", b"y", signature)
    assert not keys.verifies("decision", b"x", signature)
    assert NEW not in repr(keys)


@pytest.mark.parametrize("signature", [None, 1, [], {}, {"key": [], "hmac": "é"}, {"key": "x", "hmac": None}])
def test_a_malformed_signature_is_not_valid(signature: object) -> None:
    assert not SigningKeys((OLD,)).verifies("start", b"x", signature)
    ids = SigningKeys((OLD,)).ids
    assert not SigningKeys((OLD,)).verifies("start", b"x", {"key": ids[0], "hmac": "é"})


def test_a_folder_that_cannot_be_written_has_no_key(tmp_path: Path) -> None:
    (tmp_path / ".saga").write_text("a file, so no folder can be made")
    assert load_settings(tmp_path, env={}).signing_keys() == SigningKeys()


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("[worker]\ndefinition_key = 1", {}, "worker.definition_key must be a string, "),
        ("[worker]\naccept = 'all'", {}, 'worker.accept must be "signed" or "project" or "any"'),
        (
            f"[worker]\nearlier_definitions = ['sha256:{'0' * 64}']",
            {},
            'worker.earlier_definitions has no effect without `accept = "project"`',
        ),
        (
            "[worker]\naccept = 'project'\nearlier_definitions = ['latest']",
            {},
            "'latest' is not the `digest` of a definition, which `saga show -o json` has",
        ),
        ("[worker]\nkey = 'x'", {}, r"\[worker\]: unknown setting key"),
        ("", {"SAGA_WORKER__DEFINITION_KEY": "123"}, "at least 32 characters"),
        ("", {"SAGA_WORKER__DEFINITION_KEY": f"{NEW} short"}, "at least 32 characters"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, env: dict[str, str], message: str) -> None:
    (tmp_path / "saga.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_settings(tmp_path, env=env).signing_keys()


def test_an_answer_has_the_key_of_its_call_while_keys_are_rotated() -> None:
    rotated, behind = SigningKeys((NEW, OLD)), SigningKeys((OLD,))
    assert behind.verifies("answer", b"x", rotated.sign("answer", b"x", preferred=behind.ids[0]))
    assert rotated.sign("answer", b"x", preferred="unknown") == rotated.sign("answer", b"x")
    assert not behind.verifies("answer", b"x", rotated.sign("answer", b"x"))
