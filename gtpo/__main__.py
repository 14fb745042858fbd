"""`python -m gtpo` is `gtpo`: for launchers that start a module."""

from gtpo.cli import app

if __name__ == "__main__":
    app()
