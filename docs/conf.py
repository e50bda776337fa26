"""How the documentation is built: Sphinx reading MyST markdown, `make docs`."""

from importlib.metadata import version as installed_version

project = "npu_notebook"
author = "The npu_notebook authors"
project_copyright = "The npu_notebook authors"
release = installed_version("npu-notebook")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
# Every heading can be linked to, as GitHub's own rendering of these pages allows.
myst_heading_anchors = 4
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"npu_notebook {release}"
html_logo = "../kernelspec/logo-svg.svg"
html_show_copyright = False
# `%%spmd` cells are no valid Python; show them as they are and say nothing.
highlight_language = "text"
