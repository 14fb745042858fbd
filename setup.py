"""What pyproject.toml has no words for: the packages, and the README and addresses of a package index.

GTPO_REPOSITORY_URL, e.g. https://github.com/OWNER/gtpo: where set, the README's relative links lead there, to the tag
of this version. Otherwise they are left out, since they would lead nowhere on an index.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

REPOSITORY = os.environ.get("GTPO_REPOSITORY_URL", "").rstrip("/")
VERSION = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def link(match: re.Match[str]) -> str:
    """Return a relative link of the README (or an image) as an index can show it."""
    image, words, target = match.groups()
    if not REPOSITORY:
        return "" if image else words
    return f"{image}[{words}]({REPOSITORY}/{'raw' if image else 'blob'}/v{VERSION}/{target})"


urls = {"Paper": "https://arxiv.org/abs/2508.03772"}
if REPOSITORY:
    pages = {"Changelog": f"blob/v{VERSION}/CHANGELOG.md", "Documentation": f"blob/v{VERSION}/docs/index.md"}
    urls |= {"Repository": REPOSITORY, "Issues": f"{REPOSITORY}/issues"}
    urls |= {name: f"{REPOSITORY}/{page}" for name, page in pages.items()}

setup(
    packages=[
        *find_packages(include=["gtpo", "gtpo.*"]),
        *(f"gtpo.{name}" for name in find_packages(include=["rewards", "rewards.*", "evalkit", "evalkit.*"])),
        *(f"gtpo.{name}" for name in find_namespace_packages(include=["configs", "configs.*", "examples"])),
    ],
    long_description=re.sub(
        r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)", link, Path("README.md").read_text(encoding="utf-8")
    ),
    long_description_content_type="text/markdown",
    project_urls=urls,
)
