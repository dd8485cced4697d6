"""``rocketpoll archive FILE.zip``: the modules that Spark's workers need, for ``--py-files``.

The archive has the modules that are installed where the command runs. The broker, the command line
and compiled packages are left out: numpy, pyarrow and orjson must be on the cluster. On the driver
the archive must also be on PYTHONPATH, because Spark does not look for sources in --py-files.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import ByteSize

_ROOT: Final = Path(__file__).resolve().parents[3]
_EXCLUDED: Final = _ROOT / "rmq_spark" / "cli"
_ROCKETPOLL_MODULES: Final = ("__init__.py", "errors.py", "spark.py")
"""Modules of ``rocketpoll`` in the archive: ``rocketpoll.Producer`` works on a cluster, too."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@click.command(cls=CommandWithExample, example="rocketpoll archive dist/rocketpoll.zip")
@click.argument("file", type=click.Path(path_type=Path))
def archive(file: Path) -> None:
    """Write an archive of the Spark source and sink for --py-files, and print how to use it.

    FILE is the archive to write, for example dist/rocketpoll.zip. Missing directories are created.
    """
    if file.suffix != ".zip":
        raise click.UsageError(
            f"{file} does not end with .zip: Spark would not recognize the archive. Rename it"
        )
    missing = [each for each in reversed(file.parents) if not each.exists()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_archive(file)
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror or error}") from error
    for directory in missing:
        sys.stderr.write(f"created the directory {directory}\n")
    sys.stderr.write(f"wrote {file}, {ByteSize(file.stat().st_size)}\n")
    quoted = shlex.quote(str(file))
    sys.stdout.write(f"PYTHONPATH={quoted} spark-submit --py-files {quoted} PROGRAM.py\n")


def write_archive(path: Path) -> None:
    """Write the archive, whole or not at all; the same modules give the same bytes."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in _modules():
            entry = zipfile.ZipInfo(module.relative_to(_ROOT).as_posix(), _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, module.read_bytes(), zipfile.ZIP_DEFLATED)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(held.getvalue())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _modules() -> Iterator[Path]:
    yield _ROOT / "pyspark_rocketpoll.py"
    yield from (_ROOT / "rocketpoll" / name for name in _ROCKETPOLL_MODULES)
    for module in sorted((_ROOT / "rmq_spark").rglob("*.py")):
        if _EXCLUDED not in module.parents:
            yield module
