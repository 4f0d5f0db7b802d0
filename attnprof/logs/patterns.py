"""What engines print at start-up: a pattern a figure, with its unit."""

import re
from dataclasses import dataclass
from typing import Literal

GIB, MIB = 2**30, 2**20
Combine = Literal["first", "last", "max", "min", "sum"]


@dataclass(frozen=True)
class Pattern:
    """A figure in a line: ``key`` is its term, ``scale`` turns what is printed into bytes.

    A figure is printed by every rank; ``combine`` says which one counts. Groups named other than
    ``value`` are settings.
    """

    key: str
    regex: re.Pattern[str]
    scale: float = 1.0
    combine: Combine = "max"


def _p(key: str, regex: str, scale: float = 1.0, combine: Combine = "max") -> Pattern:
    return Pattern(key, re.compile(regex), scale, combine)


# Gaps and numbers have a longest length: without, a hostile line takes time by its square.
_GAP = r".{0,300}?"
_NUMBER = r"(?<![\d,.])(?P<value>-?[\d,]{1,24}(?:\.\d{1,12})?)"
_COUNT = r"[\d,]{1,24}"
_DEVICE = r"[Ff]ree memory on device [^(]{0,60}\("

VLLM = (
    _p("weights", rf"Model loading took {_NUMBER}\s*Gi?B", GIB),
    _p("weights", rf"[Ll]oading model weights took {_NUMBER}\s*Gi?B", GIB),
    _p("weights", rf"weights memory: {_NUMBER}\s*GiB", GIB),
    _p("weights", rf"model weights take {_NUMBER}\s*GiB", GIB),
    _p("weights", rf"Actual usage(?: is|:) {_NUMBER} GiB for weights?", GIB),
    _p("consumed", rf"{_NUMBER} GiB for consumed memory", GIB),
    _p("activation", rf"{_NUMBER} GiB for peak activation", GIB),
    _p("activation", rf"torch peak memory increase: {_NUMBER}\s*GiB", GIB),
    _p("activation", rf"PyTorch activation peak memory takes {_NUMBER}\s*GiB", GIB),
    _p("peak_torch", rf"peak_torch_memory={_NUMBER}\s*GiB", GIB),
    _p("runtime", rf"{_NUMBER} GiB for non-torch memory", GIB),
    _p("runtime", rf"non-torch forward increase memory: {_NUMBER}\s*GiB", GIB),
    _p("runtime", rf"non_torch_memory(?: takes |=){_NUMBER}\s*GiB", GIB),
    _p("graphs", rf"Graph capturing finished in {_GAP}took {_NUMBER}\s*GiB", GIB),
    _p("graphs", rf"{_NUMBER} GiB for (?:CUDAGraph|NPU graph) memory", GIB),
    _p("kv", rf"Available KV cache memory: {_NUMBER}\s*GiB", GIB, "min"),
    _p("kv", rf"reserved for KV Cache is {_NUMBER}\s*GiB", GIB, "min"),
    _p("kv", rf"kv_cache_size={_NUMBER}\s*GiB", GIB, "min"),
    _p("kv", rf"available KV cache memory \({_NUMBER} GiB\)", GIB, "min"),
    _p("tokens", rf"GPU KV cache size: {_NUMBER} tokens", 1, "min"),
    _p("tokens", rf"stored in KV cache \({_NUMBER}\)", 1, "min"),
    _p("blocks", rf"# (?:GPU|CUDA|ROCM|cuda) blocks: {_NUMBER}", 1, "min"),
    _p("cpu_blocks", rf"# CPU blocks: {_NUMBER}", 1, "min"),
    _p("concurrency", rf"concurrency for {_COUNT} tokens per request: {_NUMBER}x", 1, "min"),
    _p("total", rf"{_DEVICE}[\d.]+/{_NUMBER} GiB\)", GIB),
    _p("total", rf"total_gpu_memory(?: \(|=){_NUMBER}\s*GiB", GIB),
    _p("free", rf"{_DEVICE}{_NUMBER}/[\d.]+ GiB\)", GIB, "min"),
    _p("block_tokens", rf"Setting attention block size to {_NUMBER} tokens"),
    _p("needed", rf"\(?{_NUMBER} GiB KV cache is needed", GIB),
    _p("estimated_max_len", rf"estimated maximum model length is {_NUMBER}"),
)
VLLM_SETTINGS = (
    re.compile(r"vLLM API server version (?P<version>[\w.+-]+)"),
    re.compile(r"Initializing (?:an|a V1|a V0) LLM engine \(v(?P<version>[\w.+-]+)\)"),
    re.compile(r"LLM engine .{0,300}?model='(?P<model>[^']+)'"),
    re.compile(r"'model(?:_tag)?': '(?P<model>[^']+)'"),
    re.compile(r"vllm serve (?P<model>[\w./-]+)"),
    re.compile(r"--model[= ](?P<model>[\w./-]+)"),
    re.compile(r"\bmax_seq_len=(?P<max_model_len>\d+)"),
    re.compile(r"Using max model len (?P<max_model_len>\d+)"),
    re.compile(r"Maximum concurrency for (?P<max_model_len>[\d,]{1,24}) tokens"),
    re.compile(r"max(?:imum)? seq(?:uence)? len(?:gth)? \((?P<max_model_len>\d+)\)"),
    re.compile(r"\b(?:dtype=torch\.|'dtype': ')(?P<dtype>\w+)"),
    re.compile(r"\btensor_parallel_size(?:=|': )(?P<tp>\d+)"),
    re.compile(r"\bpipeline_parallel_size(?:=|': )(?P<pp>\d+)"),
    re.compile(r"\bdata_parallel_size(?:=|': )(?P<dp>\d+)"),
    re.compile(r"\bquantization(?:=|': )'?(?P<quantization>[\w.-]+)"),
    re.compile(r"\bkv_cache_dtype(?:=|': )'?(?P<kv_dtype>\w+)"),
    re.compile(r"\benforce_eager(?:=|': )(?P<enforce_eager>True|False)"),
    re.compile(r"\benable_prefix_caching(?:=|': )(?P<enable_prefix_caching>True|False)"),
    re.compile(r"gpu_memory_utilization(?:=|': ?)(?P<utilization>0?\.\d+|1\.0)"),
    re.compile(r"gpu_memory_utilization \((?P<utilization>0?\.\d+|1\.0)\)"),
    re.compile(r"[Dd]esired GPU memory utilization (?:is )?\((?P<utilization>[\d.]+),"),
    re.compile(r"'max_num_seqs': (?P<max_num_seqs>\d+)"),
    re.compile(r"max_num_seqs=(?P<max_num_seqs>\d+)"),
    re.compile(r"max_num_batched_tokens(?:=|': )(?P<max_num_batched_tokens>\d+)"),
    re.compile(r"'block_size': (?P<block_size>\d+)"),
    re.compile(r"\bblock_size=(?P<block_size>\d+)"),
    re.compile(r"'max_model_len': (?P<max_model_len>\d+)"),
)

SGLANG = (
    _p("before", rf"Load weight begin\. avail mem={_NUMBER} GB", GIB, "min"),
    _p("after", rf"Load weight end\.{_GAP}avail mem={_NUMBER} GB", GIB, "min"),
    _p("weights", rf"Load weight end\.{_GAP}mem usage={_NUMBER} GB", GIB),
    _p("tokens", rf"KV Cache is allocated\.{_GAP}#tokens: {_NUMBER}", 1, "min"),
    _p("k", rf"KV Cache is allocated\.{_GAP}K size: {_NUMBER} GB", GIB),
    _p("v", rf"KV Cache is allocated\.{_GAP}V size: {_NUMBER} GB", GIB),
    _p("kv", rf"KV Cache is allocated\.{_GAP}KV size: {_NUMBER} GB", GIB),
    _p("pool_end", rf"Memory pool end\. avail mem={_NUMBER} GB", GIB, "min"),
    _p("graphs", rf"Capture cuda graph end\.{_GAP}mem usage={_NUMBER} GB", GIB),
    _p("tokens", rf"max_total_num_tokens={_NUMBER}", 1, "min"),
)
SGLANG_SETTINGS = (
    re.compile(r"\bsglang(?:==|[ _]version[:= ]+| v)(?P<version>\d[\w.+]*)", re.I),
    re.compile(r"ServerArgs\(model_path='(?P<model>[^']+)'"),
    re.compile(r"--model(?:-path)?[= ](?P<model>[\w./-]+)"),
    re.compile(r"\bmem_fraction_static=(?P<utilization>[\d.]+)"),
    re.compile(r"\btp_size=(?P<tp>\d+)"),
    re.compile(r"\bpp_size=(?P<pp>\d+)"),
    re.compile(r"\bdp_size=(?P<dp>\d+)"),
    re.compile(r"\bkv_cache_dtype='(?P<kv_dtype>\w+)'"),
    re.compile(r"\bquantization='(?P<quantization>[\w.-]+)'"),
    re.compile(r"\bcontext_length=(?P<max_model_len>\d+)"),
    re.compile(r"\bcontext_len=(?P<max_model_len>\d+)"),
    re.compile(r"\bpage_size=(?P<block_size>\d+)"),
    re.compile(r"Load weight end\..{0,300}?dtype=torch\.(?P<dtype>\w+)"),
    re.compile(r"^.{0,400}?ServerArgs\(.{0,9000}?max_running_requests=(?P<max_num_seqs>\d+)"),
    re.compile(r"\benable_dp_attention=(?P<dp_attention>True|False)"),
)

LLAMA_CPP = (
    _p("file", rf"file size\s*=\s*{_NUMBER} GiB", GIB),
    _p("file", rf"file size\s*=\s*{_NUMBER} MiB", MIB),
    _p("file", rf"model size\s*=\s*{_NUMBER} GiB", GIB),
    _p("weights", rf"model buffer size =\s*{_NUMBER} MiB", MIB, "sum"),
    _p("weights", rf"llm_load_tensors: {_GAP} buffer size =\s*{_NUMBER} MiB", MIB, "sum"),
    _p("kv", rf"llama_kv_cache\w*: size =\s*{_NUMBER} MiB", MIB, "sum"),
    _p("kv", rf"KV self size\s*=\s*{_NUMBER} MiB", MIB),
    _p("states", rf"llama_memory_recurrent: size =\s*{_NUMBER} MiB", MIB, "sum"),
    _p("compute", rf"compute buffer size (?:of \S+ )?=\s*{_NUMBER} MiB", MIB),
)
LLAMA_CPP_SETTINGS = (
    re.compile(r"\bbuild(?::| =) (?P<build>\d+) \("),
    re.compile(r"^version: (?P<build>\d+) \("),
    re.compile(r"general\.name\s+(?:str\s+)?=\s*(?P<model>.+)$"),
    re.compile(r"n_ctx\s+=\s+(?P<ctx_size>\d+)"),
    re.compile(r"n_ubatch\s+=\s+(?P<ubatch>\d+)"),
    re.compile(r"n_seq_max\s+=\s+(?P<parallel>\d+)"),
    re.compile(r"flash_attn\s+=\s+(?P<flash_attention>\w+)"),
    re.compile(r"Flash Attention was auto, set to (?P<flash_attention>\w+)"),
    re.compile(r"kv_unified\s+=\s+(?P<unified>\w+)"),
    re.compile(r"mla_attn\s+=\s+(?P<mla>\d)"),
    re.compile(r"K \((?P<k_dtype>\w+)\):"),
    re.compile(r"V \((?P<v_dtype>\w+)\):"),
    re.compile(r"\barch\s+=\s+(?P<arch>\w+)"),
    re.compile(r"n_embd\s+=\s+(?P<n_embd>\d+)"),
    re.compile(r"n_layer\s+=\s+(?P<n_layer>\d+)"),
    re.compile(r"n_head\s+=\s+(?P<n_head>\d+)$"),
    re.compile(r"n_head_kv\s+=\s+(?P<n_head_kv>\d+)$"),
    re.compile(r"n_embd_head_k\s+=\s+(?P<n_embd_head_k>\d+)"),
    re.compile(r"n_embd_head_v\s+=\s+(?P<n_embd_head_v>\d+)"),
    re.compile(r"n_swa\s+=\s+(?P<n_swa>\d+)"),
    re.compile(r"n_vocab\s+=\s+(?P<n_vocab>\d+)"),
    re.compile(r"n_ff\s+=\s+(?P<n_ff>\d+)$"),
    re.compile(r"offloaded (?P<offloaded>\d+)/(?P<offloadable>\d+) layers"),
)

OLLAMA = (
    _p("weights", r'memory\.weights\.total="(?P<value>[\d.]+ [KMG]i?B)"'),
    _p("kv", r'memory\.required\.kv="(?P<value>[\d.]+ [KMG]i?B)"'),
    _p("graph", r'memory\.graph\.full="(?P<value>[\d.]+ [KMG]i?B)"'),
    _p("required", r'memory\.required\.full="(?P<value>[\d.]+ [KMG]i?B)"'),
)
OLLAMA_SETTINGS = (
    re.compile(r"Listening on .{0,300}?\(version (?P<version>[\w.-]+)\)"),
    re.compile(r"--ctx-size (?P<ctx_size>\d+)"),
    re.compile(r"--batch-size (?P<batch>\d+)"),
    re.compile(r"--parallel (?P<parallel>\d+)"),
    re.compile(r'--kv-cache-type "?(?P<kv_dtype>\w+)'),
    re.compile(r'inference compute.{0,500}?name="(?P<gpu>[^"]+)"'),
    *LLAMA_CPP_SETTINGS,
)

TENSORRT_LLM = (
    _p("weights", rf"Loaded engine size: {_NUMBER} MiB", MIB),
    _p("kv", rf"Allocated {_NUMBER} GiB for max tokens in paged KV cache", GIB, "min"),
    _p("kv", rf"Allocate {_NUMBER} bytes for k/v cache", 1, "min"),
    _p("tokens", rf"for max tokens in paged KV cache \({_NUMBER}\)", 1, "min"),
    _p("tokens", rf"Using {_NUMBER} tokens in paged KV cache", 1, "min"),
    _p("blocks", rf"Number of blocks in KV cache primary pool: {_NUMBER}", 1, "min"),
    _p("blocks", rf"primary blocks={_NUMBER}", 1, "min"),
    _p("total", rf"calculating max tokens in paged kv cache: total: {_NUMBER} GiB", GIB),
    _p("available", rf"calculating max tokens in paged kv cache:{_GAP}available: {_NUMBER} GiB",
       GIB, "min"),
    _p("block_tokens", rf"(?:[Nn]umber of tokens per block:|tokens per block=) ?{_NUMBER}"),
)  # fmt: skip
TENSORRT_LLM_SETTINGS = (
    re.compile(r"TensorRT-LLM version: (?P<version>[\w.+-]+)"),
    re.compile(r"Engine version (?P<version>[\w.+-]+) found"),
    re.compile(r"TRTGptModel maxSequenceLen: (?P<max_model_len>\d+)"),
    re.compile(r"TRTGptModel maxNumSequences: (?P<max_num_seqs>\d+)"),
    re.compile(r"MPI size: (?P<tp>\d+)"),
    re.compile(r"(?:[Nn]umber of tokens per block:|tokens per block=) ?(?P<block_size>\d+)"),
    re.compile(r"--model(?:_dir|-path)?[= ](?P<model>[\w./-]+)"),
    re.compile(r"trtllm-serve (?P<model>[\w.-]+/[\w./-]+)"),
)

ENGINES = {
    "vllm": (VLLM, VLLM_SETTINGS),
    "sglang": (SGLANG, SGLANG_SETTINGS),
    "tensorrt-llm": (TENSORRT_LLM, TENSORRT_LLM_SETTINGS),
    "ollama": (OLLAMA, OLLAMA_SETTINGS),
    "llama-cpp": (LLAMA_CPP, LLAMA_CPP_SETTINGS),
}
# Lines that only this engine prints; Ollama's logs hold llama.cpp's too, so it is asked first.
SIGNATURES = {
    "vllm": re.compile(r"vllm|vLLM|LLM engine \(v|GPU KV cache size:|# (?:GPU|CUDA) blocks:|"
                       r"Available KV cache memory"),
    "sglang": re.compile(r"sglang|ServerArgs\(|KV Cache is allocated\.|Load weight end\."),
    "tensorrt-llm": re.compile(r"TensorRT-LLM|trtllm"),
    "ollama": re.compile(r'memory\.required\.|OLLAMA_|msg="(?:offload|starting llama|llama runner)'
                         r"|Listening on .{0,300}?\(version"),
    "llama-cpp": re.compile(r"llama_(?:kv_cache|context|model|new_context)|llm_load|print_info:|"
                            r"ggml_|load_tensors"),
}  # fmt: skip
GPU = re.compile(
    r"(?:Device \d+: |GPU \d+: |device_name[=:] ?'?)?"
    r"(?P<gpu>(?:NVIDIA|Tesla|AMD Instinct|AMD Radeon|GeForce) [A-Z][\w -]{0,60}?)"
    r"(?=,|\)|'|\"|\s{2,}|\s*\(UUID|\s*\||\.|;|$)"
)
