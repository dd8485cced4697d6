"""The lowest versions that pyproject.toml allows, as constraints for pip: `make lowest`.

    python tests/support/programs/lowest_versions.py > constraints.txt

They cover the package and its small extras. Spark is left out, because `make matrix` tests its
releases, and so are the test tools, whose newest versions are used.
"""

import re
import sys
from pathlib import Path

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
EXTRAS = ("avro", "opentelemetry", "protobuf")
_REQUIREMENT = re.compile(
    r"""\s*"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^]]*\])?>=(?P<version>[0-9.]+)[^;"]*"""
    r"""(?P<marker>;[^"]*)?"[],]"""
)


def constraints(text):
    """Return a line for each requirement, with its lower bound.

    Python 3.10 has no TOML parser, so each requirement must be on its own line.
    """
    project = text[: text.index("[project.scripts]")]
    lines = []
    for section in ("dependencies", *EXTRAS):
        found = re.search(rf"^{section} = \[(.*?\])\s*(#.*)?$", project, re.DOTALL | re.MULTILINE)
        if found is None:
            raise LookupError(f"{PYPROJECT} has no list of {section}")
        for line in found[1].splitlines():
            requirement = _REQUIREMENT.match(line)
            if requirement is not None:
                name, version, marker = (
                    requirement["name"],
                    requirement["version"],
                    requirement["marker"],
                )
                lines.append(f"{name}=={version}{marker or ''}")
            elif line.split("#")[0].strip() not in ("", "]"):
                raise ValueError(f"{PYPROJECT}: no lower bound in {line.strip()!r}")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(PYPROJECT.read_text(encoding="utf-8"))) + "\n")
