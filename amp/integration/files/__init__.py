"""Graphs, functions and SavedModels given by hand or in files.

No hook may enter: what is given is rewritten once, and handed back.
Before it: `api`, whose policies it settles. After it: `launch`, `amp.cli`.
"""
