"""One file per log format; each turns rows into canonical trace rows."""
