"""How does FBGEMM's own test suite run against neocpu? `pytest -p neocpu.peers.fbgemm.plugin`."""

from typing import Any

from neocpu.peers.fbgemm.installing import install, installed


def pytest_configure(config: Any) -> None:
    """Replace FBGEMM's classes and operators before any test file is imported."""
    install()


def pytest_report_header(config: Any) -> str:
    """A line in the report's header, so that nobody mistakes whose answers were tested."""
    return "neocpu stands in for FBGEMM" if installed() else "neocpu does not stand in for FBGEMM"
