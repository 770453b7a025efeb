"""The wheel has the version of the extension and all files, and works where no
driver is installed; the types are right. If this fails, a release is broken."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import idempotency_pg

PROJECT = Path(__file__).parent.parent
CONTROL = PROJECT / "../../idempotency.control"


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_version():
    assert re.search("^default_version = '(.*)'$", CONTROL.read_text(), re.M)[1] == idempotency_pg.__version__


def test_licence():
    assert (PROJECT / "LICENSE").read_bytes() == (PROJECT / "../../LICENSE").read_bytes()


def test_types(tmp_path):
    """Of the library, and of a program that uses it."""
    mypy = ("/usr/bin/mypy", "--strict", "--cache-dir", tmp_path)
    run(*mypy, "src", cwd=PROJECT)
    run(*mypy, "tests/programs/typed.py", cwd=PROJECT, env={"MYPYPATH": "src"})


def test_wheel(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns("tests", "build", "*.egg-info"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"idempotency_pg-{idempotency_pg.__version__}-py3-none-any.whl"
    files = {name for name in zipfile.ZipFile(wheel).namelist() if not name.count(".dist-info/")}
    package = source / "src/idempotency_pg"
    assert files == {f"idempotency_pg/{file.name}" for file in package.iterdir() if file.is_file()}
    assert "idempotency_pg/py.typed" in files

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--no-index", wheel, cwd=tmp_path)
    code = "import idempotency_pg, idempotency_pg.aio, idempotency_pg.asgi; print(idempotency_pg.__version__)"
    assert run(python, "-I", "-c", code, cwd=tmp_path).strip() == idempotency_pg.__version__
