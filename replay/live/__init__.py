"""Drive a vLLM engine, one clean process per proposer, and log every decode step."""
