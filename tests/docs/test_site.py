"""The web site: what it is laid out from is complete, so that every link works there too."""

from __future__ import annotations

import importlib
import re
import runpy

import pytest
from pages import ROOT, links

stage = runpy.run_path(str(ROOT / "docs" / "site" / "stage.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "pages"
    stage["stage"](folder)
    return folder


def test_every_link_of_every_page_resolves_in_the_site(site):
    pages = sorted(site.rglob("*.md"))
    assert {"README.md", "jobs.md", "index.md"} <= {page.name for page in pages}
    lost = [
        f"{page.relative_to(site)}: {link}"
        for page in pages
        for link in links(page)
        if not re.match(r"[a-z]+:|#", link) and not (page.parent / link.partition("#")[0]).exists()
    ]
    assert not lost


def test_each_page_of_the_api_is_of_a_module_with_public_names(site):
    named = {page.stem for page in (site / "api").glob("*.md")} - {"index"}
    assert {"scone.decode", "scone.jobs", "scone_kernels"} <= named
    assert all(importlib.import_module(name).__all__ for name in named)


def test_laying_it_out_again_leaves_nothing_old(site):
    (site / "old.md").write_text("gone")
    stage["stage"](site)
    assert not (site / "old.md").exists()
