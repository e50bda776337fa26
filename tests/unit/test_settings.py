"""The settings file: absent is fine, wrong is explained with file and key."""

from __future__ import annotations

import pytest

from npu_notebook.errors import ConfigError
from npu_notebook.settings import Settings, parse_linger, read_settings


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    monkeypatch.setenv("NPU_NOTEBOOK_CONFIG", str(path))
    return path


def test_without_a_file_nothing_is_set(file):
    assert not file.exists()
    assert read_settings() == Settings()


def test_defaults_are_read(file):
    file.write_text('device = "cpu"\nnum_ranks = 2\nlinger = "forever"\n[env]\nA = "1"')
    settings = read_settings()
    assert (settings.device, settings.num_ranks) == ("cpu", 2)
    assert settings.env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device = ", "cannot be read"),
        ('devices = "cpu"', "unknown key 'devices'. Did you mean 'device'?"),
        ('num_ranks = "two"', "num_ranks"),
        ("num_ranks = 0", "num_ranks"),
        ("start_timeout = -5", "start_timeout"),
        ('linger = "long"', "'long' is not a time to linger"),
    ],
)
def test_a_wrong_file_is_explained(file, text, sentence):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert str(file) in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "seconds"), [("0", 0.0), (2.5, 2.5), ("forever", None)]
)
def test_a_time_to_linger_is_read(words, seconds):
    assert parse_linger(words) == seconds


@pytest.mark.parametrize("words", ["-1", "ever", "", "nan", "inf"])
def test_a_wrong_time_to_linger_is_explained(words):
    with pytest.raises(ConfigError, match="seconds, or forever"):
        parse_linger(words)
