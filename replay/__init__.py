"""The science: proposers, verification and counting over token ids. Knows no warehouse, no SQL and no command line."""
