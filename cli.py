"""Run the command line from a checkout: `python cli.py train ...` is `gtpo train ...` (gtpo/cli.py)."""

from gtpo.cli import app

if __name__ == "__main__":
    app()
