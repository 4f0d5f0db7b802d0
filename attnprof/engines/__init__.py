"""What serving engines do with memory, by version."""
