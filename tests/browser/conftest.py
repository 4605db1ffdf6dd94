"""The system's Chromium, and axe-core, which checks the accessibility of pages."""

import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def axe():
    if not AXE.is_file():
        pytest.skip("axe-core is missing: npm install axe-core, or set AXE_CORE to its path")
    return AXE.read_text(encoding="utf-8")
