"""How does an existing test suite run against neocpu? `pytest -p neocpu.peers.fbgemm.plugin`:
installed before collection.
"""

from typing import Any

from neocpu.peers.fbgemm.installing import install, installed


def pytest_configure(config: Any) -> None:
    """Before any test file is imported."""
    install()


def pytest_report_header(config: Any) -> str:
    """Said at the top of the report, so that nobody mistakes whose answers were tested."""
    return "neocpu stands in for FBGEMM" if installed() else "neocpu does not stand in for FBGEMM"
