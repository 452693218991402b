"""How is the site built? `python -m sphinx -W docs site`, without a network, in about a minute.

    _ext/repository.py      links that leave docs/ work in the site as they do on a code host
    _ext/key_reference.py   the page of all keys of a config, from the records
    _ext/key_anchors.py     its keys are found by their whole names
    _ext/gallery.py         each lesson's pictures have the same look
    _ext/api.py             the page of the public modules, from their docstrings
    _ext/optimizer_table.py the table of optimizers in design.md, from their records

Lessons (`examples/lessons`) run while the site is built, with the kernels of NEOCPU_CACHE_DIR.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "_ext")]
# Lessons run without a window.
os.environ.setdefault("MPLBACKEND", "Agg")

project = "neocpu"
author = "the authors of neocpu"
project_copyright = "the authors of neocpu, Apache-2.0"
version = release = import_module("neocpu").__version__

extensions = [
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "sphinx.ext.autodoc",
    "repository",
    "key_reference",
    "key_anchors",
    "api",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "generated/lessons/*.py", "generated/lessons/*.ipynb"]
# Anchors of headings, as code hosts make them.
myst_heading_anchors = 4
# Search needs no stemmer of another language; code blocks without a language are plain text.
# In lessons and docstrings, `name` is code.
default_role = "code"
add_module_names = False
python_maximum_signature_line_length = 88
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
language = "en"
highlight_language = "none"
nitpicky = False
# Pages that the gallery makes: its functions cannot be pickled, which only costs a rebuild.
suppress_warnings = ["config.cache"]

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/lessons"],
    "gallery_dirs": ["generated/lessons"],
    "filename_pattern": r"/\d\d_",
    "ignore_pattern": r"lesson\.py$",
    "within_subsection_order": "FileNameSortKey",
    "copyfile_regex": r".*\.rst",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib", "gallery.forget_lesson"),
    "thumbnail_size": (480, 300),
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "neocpu"
html_static_path = ["_static"]
html_css_files = ["neocpu.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
# Pages without neighbours need no list of them.
html_sidebars = {"benchmarks": []}
html_context = {"default_mode": "auto"}
