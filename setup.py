"""The list of packages, for which pyproject.toml has no word: rewards/ and evalkit/ are packages of gtpo."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["gtpo", "gtpo.*"]),
        *(f"gtpo.{name}" for name in find_packages(include=["rewards", "rewards.*", "evalkit", "evalkit.*"])),
    ]
)
