"""Settings of the documentation site: `make docs`."""

project = "Training Reproducibility Suite"
extensions = ["myst_parser"]
exclude_patterns = ["conf.py", "figures.py"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository outside docs/
