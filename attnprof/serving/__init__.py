"""A deployment and its load -> the times of its steps, and from them TTFT, TPOT and throughput."""
