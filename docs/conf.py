"""How Sphinx builds the site: `make site`, offline, warnings as errors."""

from importlib import metadata

project = "atoll"
author = "the atoll authors"
version = release = metadata.version("atoll")
extensions = ["myst_parser"]
exclude_patterns = ["results/*"]
html_theme = "furo"
html_title = "atoll"
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_copyright = False
nitpicky = True  # a link without a target is a warning, and warnings are errors
myst_heading_anchors = 4
myst_links_external_new_tab = False
