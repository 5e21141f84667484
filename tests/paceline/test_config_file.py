"""--config: flags from a TOML file or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.config import flag, parse_flags
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings."""

    port: int = flag(1, help="port")
    peers: tuple[str, ...] = flag((), help="peers")
    fast: bool = flag(False, help="fast")
    level: str = flag("low", help="level", choices=("low", "high"))


def parse(*argv: str) -> Settings:
    return parse_flags(Settings, argv, prog="it")


def test_a_toml_file_gives_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_text('port = 7\npeers = ["a:1", "b:2"]\nfast = true\n')
    assert parse("--config", str(file), "--port=8") == Settings(8, ("a:1", "b:2"), True)
    assert parse("--port", "8", f"--config={file}", "--no-fast") == Settings(8, ("a:1", "b:2"), False)


def test_a_folder_gives_a_flag_a_file_as_a_mounted_config_map_does(tmp_path: Path) -> None:
    version = tmp_path / "..2026_01_01"
    version.mkdir()
    (version / "peers").write_text("a:1,b:2\n")
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "peers").symlink_to("..data/peers")
    (tmp_path / "level").write_text("high")
    (tmp_path / "fast").write_text("false\n")
    assert parse("--config", str(tmp_path)) == Settings(1, ("a:1", "b:2"), False, "high")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 7", "'prot' is no flag of python -m it; see python -m it --help"),
        ("port = true", "port is True"),
        ("fast = 3", "fast is 3; it must be true or false"),
        ("[port]\nx = 1", "it must be a text, a number or a list of them"),
        ("port", "is no TOML"),
        ("peers = ['a:1', '']", "--peers: 'a:1,' has an empty item; take a comma out"),
        ("level = 'middle'", "'middle'"),
        ("help = 'x'", "'help' is no flag"),
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_key(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "it.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        parse("--config", str(file))


def test_what_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    what_to_do = "name a TOML file, or a folder with a file a flag$"
    with pytest.raises(ConfigError, match=rf"^--config: \S+nowhere\.toml is not there; {what_to_do}"):
        parse("--config", str(tmp_path / "nowhere.toml"))
    (tmp_path / "port").write_bytes(b"\xff7")
    with pytest.raises(ConfigError, match=rf"^--config: \S+/port is no text in UTF-8 \(.*{what_to_do}"):
        parse("--config", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"^--config: \S+/port/x cannot be read: Not a directory; .*{what_to_do}"):
        parse("--config", str(tmp_path / "port" / "x"))
    with pytest.raises(ConfigError, match=rf"^--config is empty; {what_to_do}"):
        parse("--config", "")
    with pytest.raises(ConfigError, match="--config"):
        parse("--config")
