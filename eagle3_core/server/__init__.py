"""The apps' server and what their cells call: state in the URL, artifacts on offer, payloads, pages.

Nothing here computes a figure; everything is read from the core's one table.
"""
