"""The columns of ``results.csv``, named as the record names them. More may be added at the end."""

RESULT_KEYS = (
    "workload_id", "scope", "phase", "attention", "variant", "window_len", "position", "kv_cache",
    "backend", "device", "dtype", "kv_dtype", "batch_size", "q_len", "kv_len", "num_q_heads",
    "num_kv_heads", "head_dim", "num_layers", "status", "reason", "num_samples", "median_s",
    "median_low_s", "median_high_s", "median_wall_s", "median_cpu_s", "clock", "flags", "flops",
    "bytes_moved", "achieved_flops_per_s", "mfu", "mbu", "weight_bytes", "kv_bytes",
    "peak_activation_bytes", "peak_rss_bytes", "theory_kv_bytes", "theory_peak_activation_bytes",
    "theory_s", "start_len", "cache_regime", "mixer", "model", "model_digest", "implementation",
    "weight_dtype", "source_len", "prefill_len", "checkpointing", "prefix_len", "document_len",
    "sink_len", "min_len", "mla", "v_head_dim", "kv_lora_rank", "rope_head_dim", "softcap",
    "sink_logits", "block_tokens", "ffn", "ffn_dim", "num_experts", "num_active_experts",
    "rms_error", "ttft_s", "median_itl_s",
)  # fmt: skip
