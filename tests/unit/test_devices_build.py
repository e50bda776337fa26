"""The simulated NPU is compiled once, and no library of another build is loaded.

A small program stands in for the compiler where only the building around it matters;
compiling for real takes a minute and is done once, in `tests/simulated`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_notebook.devices.simulated import build
from npu_notebook.errors import DeviceError

COMPILER = """\
#!{python}
import sys, pathlib
log = pathlib.Path({log!r})
with log.open("a") as file:
    file.write("run\\n")
arguments = sys.argv[1:]
key = next(a.split("=")[1] for a in arguments if a.startswith("-DSIMULATED_NPU_KEY="))
made = pathlib.Path(arguments[arguments.index("-o") + 1])
{body}
"""
WRITE_LIBRARY = r'made.write_bytes(b"npu-notebook-build-key=" + key.encode() + b"\0")'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_NOTEBOOK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a compiler that does what a few lines of Python say; returns its log."""

    def make(body: str) -> Path:
        program, log = tmp_path / "fake-c++", tmp_path / "log"
        text = COMPILER.format(python=sys.executable, log=str(log), body=body)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        return log

    return make


def test_a_library_is_compiled_once_and_then_found(cache: Path, compiler):
    log = compiler(WRITE_LIBRARY)
    lines: list[str] = []
    library = build.ensure_built(lines.append)
    assert library.parent.parent == cache / "simulated"
    assert lines[0].startswith("Compiling the simulated NPU for torch ")
    assert lines[-1].startswith("Compiled the simulated NPU in ")
    assert build.ensure_built(lines.append) == library
    assert log.read_text(encoding="utf-8") == "run\n"
    assert [path.name for path in library.parent.glob("build-*")] == []


@pytest.mark.usefixtures("cache")
def test_only_the_user_can_read_the_cache(compiler):
    compiler(WRITE_LIBRARY)
    library = build.ensure_built(lambda _: None)
    assert library.parent.stat().st_mode & 0o777 == 0o700


def test_two_processes_that_start_together_compile_once(cache: Path, compiler):
    # The first compiler does not end before the second process waits for the lock.
    waiting = cache.parent / "waiting"
    os.mkfifo(waiting)
    log = compiler(f"open({str(waiting)!r}).read()\n{WRITE_LIBRARY}")
    code = (
        "import sys\n"
        "from npu_notebook.devices.simulated import build\n"
        "def report(line):\n"
        "    print(line, flush=True)\n"
        "    if line.startswith('Another'):\n"
        f"        open({str(waiting)!r}, 'w').close()\n"
        "print(build.ensure_built(report))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=50)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert sorted(lines[0].split()[0] for lines in said) == ["Another", "Compiling"]
    assert log.read_text(encoding="utf-8") == "run\n"


@pytest.mark.usefixtures("cache")
def test_a_library_with_another_key_is_never_used(compiler):
    log = compiler(WRITE_LIBRARY)
    library = build.ensure_built(lambda _: None)
    library.write_bytes(b"npu-notebook-build-key=0123456789abcdef\0")
    assert not build.is_built(build.plan())
    build.ensure_built(lambda _: None)
    assert build.is_built(build.plan())
    assert log.read_text(encoding="utf-8") == "run\nrun\n"


@pytest.mark.parametrize("changed", ["version", "git_version"])
def test_another_torch_build_has_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
):
    ours = build.plan()
    values = {"version": ours.torch.version, "git_version": ours.torch.git_version}
    values[changed] += "1"
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(
        f"__version__ = {values['version']!r}\n"
        f"git_version: str | None = {values['git_version']!r}\ncuda = None\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    theirs = build.plan()
    assert theirs.torch.version == values["version"]
    assert theirs.key != ours.key


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_makes_no_key_is_refused(compiler):
    compiler('made.write_bytes(b"something else")')
    with pytest.raises(DeviceError, match="without the build key"):
        build.ensure_built(lambda _: None)


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_one_sentence_names_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError) as caught:
        build.ensure_built(lambda _: None)
    assert str(caught.value) == (
        "simulated NPU: it must be compiled once, and there is no C++ compiler on "
        "PATH. Install one (c++, g++ or clang++; Debian and Ubuntu: apt install g++), "
        "or start with `--device cpu`."
    )


@pytest.mark.usefixtures("cache")
def test_a_wrong_cxx_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(DeviceError, match=r"CXX names 'no-such-compiler'.*device cpu"):
        build.ensure_built(lambda _: None)


def test_errors_of_the_compiler_are_shown_and_kept(cache: Path, compiler):
    compiler('print("a note")\nprint("file.h:3: error: no such thing"); sys.exit(1)')
    with pytest.raises(DeviceError) as caught:
        build.ensure_built(lambda _: None)
    text = str(caught.value)
    assert "cannot compile it for torch" in text
    assert "exit code 1" in text
    assert "--device cpu" in text
    assert text.endswith("file.h:3: error: no such thing")
    (log,) = cache.glob("simulated/*/build.log")
    assert "a note" in log.read_text(encoding="utf-8")
    assert str(log) in text


@pytest.mark.usefixtures("cache")
def test_a_full_disk_is_named(compiler):
    compiler('print("error writing to x.s: No space left on device"); sys.exit(1)')
    with pytest.raises(DeviceError, match=r"was full.*NPU_NOTEBOOK_CACHE_DIR"):
        build.ensure_built(lambda _: None)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler
):
    compiler(WRITE_LIBRARY)
    (tmp_path / "file").touch()
    monkeypatch.setenv("NPU_NOTEBOOK_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match=r"cannot write its cache.*Not a directory"):
        build.ensure_built(lambda _: None)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"NPU_NOTEBOOK_CACHE_DIR": "/a"}, "/a/simulated"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/npu-notebook/simulated"),
        ({"HOME": "/c"}, "/c/.cache/npu-notebook/simulated"),
        ({"HOME": "/c", "XDG_CACHE_HOME": "rel"}, "/c/.cache/npu-notebook/simulated"),
    ],
)
def test_the_cache_lies_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
):
    for name in ("NPU_NOTEBOOK_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert build.cache_root() == Path(folder)


@pytest.mark.usefixtures("cache")
def test_a_library_that_is_missing_in_the_rank_is_explained():
    code = (
        "from npu_notebook.devices.simulated.library import load\n"
        "from npu_notebook.errors import DeviceError\n"
        "try: load()\n"
        "except DeviceError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "no library for torch" in done.stdout
    assert "--device cpu" in done.stdout
