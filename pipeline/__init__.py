"""Moves data: ingest, plan, run, warehouse, SQL views, report and the command line."""
