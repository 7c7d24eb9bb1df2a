"""What can be said of a replay before an engine starts: vocabularies, lengths, settings, memory."""
