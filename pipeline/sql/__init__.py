"""Numbered .sql views; the first comment of each file is its documentation."""
