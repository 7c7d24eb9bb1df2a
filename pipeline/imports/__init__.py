"""Counts that another tool logged, made a run: one file per format, each from one row to `counted.Counted`."""
