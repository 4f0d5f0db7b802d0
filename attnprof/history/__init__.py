"""Many runs over time -> how each workload went: its levels, where they changed, how they creep."""
