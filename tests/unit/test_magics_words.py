"""The words behind the magics: what is understood, and how a mistake is told."""

import sys
from argparse import Namespace
from collections.abc import Callable

import pytest

from npu_notebook.errors import ConfigError
from npu_notebook.notebook import commands
from npu_notebook.notebook.autospmd import transform
from npu_notebook.notebook.environment import changed, explain
from npu_notebook.notebook.magics import pull_words, push_words, spmd_words
from npu_notebook.notebook.options import HelpAsked, Words


def start_words() -> Words:
    return commands.table()["start"].words()


def perform(line: str) -> object:
    # A line that is refused never comes to what it would do.
    return commands.perform(None, line.split())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {"ranks": None, "timeout": None, "no_block": False, "out": None}),
        ("--ranks 0,2-3 --timeout 60", {"ranks": "0,2-3", "timeout": 60.0}),
        (
            "--ranks=1 --no-block --quiet",
            {"ranks": "1", "no_block": True, "quiet": True},
        ),
        ("--out losses", {"out": "losses"}),
    ],
)
def test_options_of_spmd_are_understood(line: str, expected: dict[str, object]):
    words = vars(spmd_words("%%spmd").read(line))
    assert {name: words[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('print(f"{x}", "$x", "{x}")', 'print(f"{x}", "$x", "{x}")'),
        ("--ranks 0 x + 1", "x + 1"),
        ("-x", "-x"),
        ("--timeout 3 --  --ranks", "--ranks"),
        ("--quiet a --ranks 0", "a --ranks 0"),
        ("!ls --color", "!ls --color"),
        ("f('a  b')", "f('a  b')"),
    ],
)
def test_a_line_of_code_is_left_as_it_stands(line: str, code: str):
    assert spmd_words("%spmd").read_front(line)[1] == code


def test_options_before_a_line_of_code_are_understood():
    words, code = spmd_words("%spmd").read_front("--ranks 0,2 --out v rank * 2")
    assert (words.ranks, words.out, code) == ("0,2", "v", "rank * 2")
    words, code = spmd_words("%spmd").read_front("--ranks '0, 2' print('a')")
    assert (words.ranks, code) == ("0, 2", "print('a')")


@pytest.mark.parametrize(
    ("read", "line", "words"),
    [
        (
            spmd_words,
            "--rankz 2",
            "%%spmd has no option '--rankz'. Did you mean --ranks?",
        ),
        (spmd_words, "--frobnicate", "It has --help, --no-block, --out"),
        (spmd_words, "--ranks", "argument --ranks: expected one argument"),
        (spmd_words, "--timeout soon", "'soon' is not a number of seconds above 0"),
        (spmd_words, "--timeout 0", "'0' is not a number of seconds above 0"),
        (spmd_words, "--timeout nan", "'nan' is not a number of seconds above 0"),
        (spmd_words, "--out 2x", "'2x' is not the name of a variable"),
        (spmd_words, "--out class", "'class' is not the name of a variable"),
        (spmd_words, "rank 0", "'rank' is one word too many"),
        (spmd_words, "--ranks '0", "Close the quote."),
    ],
)
def test_a_mistake_in_spmd_is_one_sentence(
    read: Callable[[str], Words], line: str, words: str
):
    with pytest.raises(ConfigError) as caught:
        read("%%spmd").read(line)
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-n four", "%npu_cluster start: argument -n/--num-ranks: not a whole number"),
        ("--env FOO", "argument --env: 'FOO' is not NAME=VALUE"),
        ("--env 1A=2", "argument --env: '1A=2' is not NAME=VALUE"),
        ("--port http", "argument --port: not a whole number: 'http'"),
        ("--devise cpu", "has no option '--devise'. Did you mean --device?"),
        ("4", "'4' is one word too many"),
    ],
)
def test_a_mistake_in_start_is_one_sentence(line: str, words: str):
    with pytest.raises(ConfigError) as caught:
        start_words().read(line)
    assert words in str(caught.value)


def test_options_of_start_are_understood():
    line = "-n 2 --env A=1 --env B=x=y --linger forever --keep --cwd 'a b' --port 29500"
    words = start_words().read(line)
    assert words == Namespace(
        help=False,
        num_ranks=2,
        device=None,
        name=None,
        env=[("A", "1"), ("B", "x=y")],
        cwd="a b",
        linger="forever",
        port=29500,
        launcher=None,
        hosts=None,
        keep=True,
        no_config=False,
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("strat", "has no subcommand 'strat'. Did you mean `%npu_cluster start`?"),
        ("xyzzy", "It has attach, "),
        ("status now", "'now' is one word too many"),
        ("interrupt --level 9", "argument --level: invalid choice"),
    ],
)
def test_a_mistaken_subcommand_is_one_sentence(line: str, words: str):
    with pytest.raises(ConfigError) as caught:
        perform(line)
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ["", "help", "--help"])
def test_the_magic_alone_lists_every_subcommand(line: str):
    with pytest.raises(HelpAsked) as asked:
        perform(line)
    for name, command in commands.table().items():
        assert f"  {name.ljust(10)[: len(name)]}" in asked.value.text
        assert command.purpose in asked.value.text


@pytest.mark.parametrize("name", sorted(commands.table()))
def test_every_subcommand_has_help(name: str):
    with pytest.raises(HelpAsked) as asked:
        perform(f"{name} --help")
    assert f"%npu_cluster {name}" in asked.value.text
    assert commands.table()[name].purpose in asked.value.text


@pytest.mark.parametrize(
    ("line", "names", "ranks"),
    [("x y", ["x", "y"], None), ("x --ranks 0-1", ["x"], "0-1")],
)
def test_push_and_pull_take_names_and_ranks(
    line: str, names: list[str], ranks: str | None
):
    for words in (push_words().read(line), pull_words().read(line)):
        assert (words.names, words.ranks) == (names, ranks)


@pytest.mark.parametrize(
    ("line", "words"),
    [("", "arguments are required: NAME"), ("x.y", "'x.y' is not the name of a var")],
)
def test_a_mistake_in_push_is_one_sentence(line: str, words: str):
    with pytest.raises(ConfigError) as caught:
        push_words().read(line)
    assert words in str(caught.value)


def remote(code: str) -> str:
    return f"get_ipython().run_cell_magic('spmd', '', {code!r})\n"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1\ny\n", remote("x = 1\ny\n")),
        ("x\n%push x\ny\n", remote("x\n") + "%push x\n" + remote("#\n\ny\n")),
        ("%time f()\n!ls\n", remote("%time f()\n!ls\n")),
        ("%%time\nf()\n", remote("%%time\nf()\n")),
        ("%%bash\nls\n", "%%bash\nls\n"),
        ("%%spmd --ranks 0\nx\n", "%%spmd --ranks 0\nx\n"),
        ("%npu_cluster status\n", "%npu_cluster status\n"),
        ("%push x\nf(x)\n", "%push x\n" + remote("#\nf(x)\n")),
        (
            "train()\n%pull loss --ranks 0\n",
            remote("train()\n") + "%pull loss --ranks 0\n",
        ),
        ("%pushy = 1\n", remote("%pushy = 1\n")),
        ("%push?\n", "%push?\n"),
        ("?spmd\n", "?spmd\n"),
        ("torch.add?\n", remote("torch.add?\n")),
        ("\n", "\n"),
        ("", ""),
    ],
)
def test_autospmd_sends_plain_cells_and_keeps_our_own_magics(cell: str, expected: str):
    assert "".join(transform(cell.splitlines(keepends=True), enabled=True)) == expected


@pytest.mark.parametrize("enabled", [True, False])
def test_local_runs_here_and_keeps_line_numbers(enabled: bool):  # noqa: FBT001  a case
    assert transform(["%%local\n", "x = 1\n"], enabled=enabled) == ["\n", "x = 1\n"]


def test_without_autospmd_cells_are_left_alone():
    assert transform(["x = 1\n"], enabled=False) == ["x = 1\n"]


def test_a_variable_set_after_the_start_is_named_without_its_value():
    changes = changed({"A": "1", "B": "2"}, {"A": "secret", "C": "3"})
    assert changes == {"A": "secret", "B": None, "C": "3"}
    (sentence,) = explain(changes)
    assert "A, B, C" in sentence
    assert "secret" not in sentence
    assert "%npu_cluster start --env A=..." in sentence


def test_a_variable_of_the_group_needs_a_new_start():
    (sentence,) = explain(changed({}, {"HCCL_CONNECT_TIMEOUT": "600"}))
    assert sentence.startswith(
        "HCCL_CONNECT_TIMEOUT is read only when the process group"
    )


def test_nothing_changed_nothing_said():
    assert explain(changed({"A": "1"}, {"A": "1", "LINES": "40"})) == []


def test_a_subcommand_in_a_new_file_is_found(tmp_path, monkeypatch):
    (tmp_path / "extra.py").write_text(
        "from npu_notebook.notebook.commands import Command\n"
        "COMMANDS = (Command('extra', 'Do more.', lambda state, words: 'done'),)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    commands.table.cache_clear()
    try:
        assert perform("extra") == "done"
    finally:
        commands.table.cache_clear()
        sys.modules.pop("npu_notebook.notebook.commands.extra", None)
