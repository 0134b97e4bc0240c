"""Named sweeps. A preset is one or more grids whose cases are joined."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.axes import Axes, override_all
from kvbench.cases import Case
from kvbench.errors import unknown


@dataclass(frozen=True, slots=True)
class Preset:
    """A named sweep with the time that each of its cells may take."""

    name: str
    summary: str
    grids: tuple[Axes, ...]
    cell_seconds: float
    """Most seconds of sampling for one strategy in one case and phase."""

    def cases(self, overrides: Axes | None = None) -> tuple[Case, ...]:
        """The preset's cases, with every axis that `overrides` names replaced in each grid."""
        return override_all(self.grids, overrides or Axes(()))


def _preset(name: str, summary: str, cell_seconds: float, *grids: str) -> Preset:
    return Preset(name, summary, tuple(Axes.parse(grid.split()) for grid in grids), cell_seconds)


_REGRESS = (
    # Starting a call is all of its time, some of it, little of it beside the bytes.
    "op=write,read seq_len=1,128,1024",
    "op=write seq_len=1 batch=64",
    "op=attend seq_len=64,1024 num_heads=32 lengths=equal",
    "op=index seq_len=1 batch=64",
    "op=index seq_len=1024",
    "op=step seq_len=64 batch=4 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=2 lengths=equal",
)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "smoke",
            "a few small cases, to see that everything works (seconds)",
            0.05,
            "seq_len=1:64:*8 block_size=16",
        ),
        _preset(
            "quick",
            "a first look at every op, enough for a report (two minutes on two cores)",
            0.05,
            # 512 is what the series counts at; several head counts tell launches from bytes.
            "op=write,read seq_len=1,4,16,128,512,1024,4096 block_size=16,64",
            "op=write,read seq_len=1,128,512 num_kv_heads=32",
            "op=attend seq_len=64:4096:*8 num_heads=32 lengths=equal",
            "op=index seq_len=1,128,1024",
            "op=step seq_len=64,1024 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=4 "
            "lengths=equal",
        ),
        _preset(
            "regress",
            "a few telling cases of every op, those of benchmarks/ (half a minute on two cores)",
            0.05,
            *_REGRESS,
        ),
        _preset(
            "regress-gpu",
            "the same on a GPU, and cases large enough to keep one busy",
            0.2,
            *_REGRESS,
            "op=write,read seq_len=16384",
            "op=attend seq_len=8192 batch=64 num_heads=32 lengths=equal",
            "op=step seq_len=2048 batch=64 num_heads=16 num_kv_heads=4 lengths=equal",
        ),
        _preset(
            "cpu",
            "all ops on a machine without a GPU (11 minutes on two cores)",
            0.1,
            # As many bytes at most with 32 heads as with 8: checking, not sampling, takes longest.
            "op=write,read seq_len=1:8192:*2 block_size=16,64",
            "op=write,read seq_len=1:2048:*2 block_size=16,64 num_kv_heads=32",
            "op=write,read seq_len=1:512:*8 batch=8",
            "op=write,read seq_len=1:4096:*8 dtype=fp32",
            "op=read output=given seq_len=1:8192:*8",
            "op=attend seq_len=64:4096:*8 batch=1,8 num_heads=32 lengths=equal",
            "op=attend seq_len=64:4096:*8 batch=8 num_heads=32 lengths=equal dtype=fp32",
            "op=index seq_len=1,128,1024 batch=1,8,64",
            "op=step seq_len=64,1024 batch=1,8 num_heads=8 num_kv_heads=2 head_dim=64 "
            "num_layers=4 lengths=equal",
            "op=step seq_len=64 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=1,16 "
            "lengths=equal",
        ),
        _preset(
            "gpu",
            "the full sweep for a GPU: block sizes, head counts, dtypes, decode batches",
            # Sixty samples of half a millisecond: ten minutes in all, by the four clocks of a GPU.
            0.03,
            # A curve at every doubling; what it depends on at every sixteenth.
            "op=write,read seq_len=1:16384:*2",
            "op=write,read seq_len=1:4096:*16 block_size=16,32,64 num_kv_heads=1,8,32",
            "op=write,read seq_len=1:4096:*16 head_dim=64,256",
            "op=write,read seq_len=1:4096:*16 batch=8,64",
            "op=write,read seq_len=1 batch=1:1024:*4",
            "op=write,read seq_len=1:4096:*16 dtype=fp16,fp32",
            "op=write,read seq_len=1:4096:*16 block_order=sequential,strided",
            "op=read output=given seq_len=1:16384:*4",
            "op=attend seq_len=128:8192:*4 batch=1,8,64 num_heads=32 lengths=equal",
            "op=attend seq_len=128:8192:*4 batch=64 num_heads=32 lengths=ragged",
            "op=attend seq_len=128:8192:*4 batch=8 num_heads=32 num_kv_heads=1,32 lengths=equal",
            "op=attend seq_len=8192 batch=64 num_heads=32 lengths=equal "
            "cache_dtype=fp8_e4m3 kv_scale=per_tensor,per_token",
            "op=attend seq_len=1024:8192:*2 query_len=512 num_heads=32 lengths=equal",
            "op=index seq_len=1,128,1024,8192 batch=1,8,64",
            "op=index seq_len=1 batch=256,1024 start_pos=0,4096",
            "op=step seq_len=128:2048:*4 batch=1,8,64 num_heads=16 num_kv_heads=4 lengths=equal",
            "op=step seq_len=128:2048:*4 batch=64 num_heads=16 num_kv_heads=4 lengths=ragged",
            "op=step seq_len=2048 batch=8 num_heads=16 num_kv_heads=4 num_layers=1,2,4,8,16,32 "
            "lengths=equal",
        ),
    )
}
"""Every preset by name."""

PREDICTED_GRIDS = tuple(
    Axes.parse(grid.split())
    for grid in (
        "op=write,read seq_len=1:16384:*2",
        "op=attend seq_len=128:8192:*2 num_heads=32 lengths=equal",
        "op=index seq_len=1:4096:*8",
        "op=step seq_len=512:8192:*4 num_heads=16 num_kv_heads=4 num_layers=4 lengths=equal",
    )
)
"""What `kvbench predict` covers by default: the main settings of the preset for a GPU."""

_MOVING = "op=write,read,index"
_MOVING_GRIDS = tuple(
    Axes.parse((grid if "op=" in grid else f"{_MOVING} {grid}").split())
    for grid in (
        # From position 253, 6 tokens begin in mid-block and cross a border at every block size.
        "start_pos=253 seq_len=6 head_dim=64,80,96,128,256 num_kv_heads=1,3,8,32 "
        "block_size=1,8,16,17,256 dtype=fp32,fp16,bf16",
        # Every second sequence is empty, the batch is padded, K and V are slices of QKV.
        "batch=3 lengths=holes start_pos=13 seq_len=3 padding=2 kv_input=contiguous,fused_qkv "
        "head_dim=80 num_kv_heads=3 num_heads=6 block_size=1,8,16,17,256 dtype=fp32,fp16,bf16",
        "batch=5 lengths=ragged start_pos=0,7 seq_len=7 head_dim=1,33 num_kv_heads=2 block_size=4 "
        "block_order=sequential,shuffled,strided",
        "batch=0,1 seq_len=0 padding=0,3",
        "batch=2 lengths=equal seq_len=100 head_dim=16 num_kv_heads=2",
        # Every layout: sequences share a prefix, tables are padded, tokens have no block.
        "layout=NHD,HND,NHD-KV,HND-KV,x-packed batch=3 start_pos=21 seq_len=6 head_dim=80 "
        "num_kv_heads=3 block_size=8 shared_blocks=2 missing_blocks=0,1 table_padding=1 padding=2 "
        "padding_slots=negative,absent kv_input=head_major,sliced_v dtype=fp32,bf16 "
        "slot_dtype=int32 block_order=churned",
        # Indices of many sequences, and of sequences of several programs.
        "op=index batch=33 start_pos=35 seq_len=3 block_size=1,17 shared_blocks=2 missing_blocks=1 "
        "lengths=equal,ragged,holes slot_dtype=int32,int64 block_order=churned padding=3",
        "op=index batch=2 start_pos=0,250 seq_len=300 block_size=16,256 padding=0,257",
        "layout=MLA batch=3 start_pos=21 seq_len=6 block_size=8 shared_blocks=2 missing_blocks=0,1 "
        "padding=1 kv_input=contiguous,fused_qkv dtype=fp32,bf16 block_order=churned",
        # Reads into tensors that the caller has.
        "op=read output=given layout=NHD,HND,NHD-KV,HND-KV,x-packed,MLA batch=3 start_pos=13 "
        "seq_len=7 block_size=8 dtype=fp32,bf16 slot_dtype=int32,int64",
        "op=read output=given cache_dtype=fp8_e4m3,int8 kv_scale=per_head,per_token batch=2 "
        "start_pos=13 seq_len=5 num_kv_heads=3 head_dim=80 block_size=8",
        "op=read output=given batch=0,1 seq_len=0",
        "op=read output=given start_pos=0,253 seq_len=6,64 num_kv_heads=1,3 head_dim=1,96 "
        "block_size=1,16,256",
        # Every format of a quantised pool, with every kind of scales.
        "cache_dtype=fp8_e4m3,fp8_e5m2,int8 kv_scale=per_tensor,per_head,per_token batch=2 "
        "start_pos=13 seq_len=5 num_kv_heads=3 head_dim=80 block_size=8 missing_blocks=1 "
        "padding=1 dtype=fp32,fp16,bf16",
        # Rows of several programs, of odd sizes, and other blocks; another k_pe.
        "cache_dtype=fp8_e4m3,int8 kv_scale=per_head,per_token seq_len=2 start_pos=63 "
        "num_kv_heads=32 head_dim=128 block_size=64",
        "layout=NHD,HND,NHD-KV,HND-KV cache_dtype=auto,fp8_e5m2 kv_scale=per_token batch=2 "
        "seq_len=3 num_kv_heads=5 head_dim=33 block_size=1,256 kv_input=sliced_v padding=1",
        "layout=MLA head_dim=80,576 rope_dim=32 cache_dtype=auto,fp8_e4m3 seq_len=3 block_size=64",
        # More than 64 heads, heads of 1 and of 576 elements, blocks of 1024 tokens.
        "seq_len=3 start_pos=1022 num_kv_heads=1,65,128 head_dim=1,5 block_size=1024",
        "seq_len=3 start_pos=1022 num_kv_heads=2 head_dim=576 block_size=1,1024",
    )
)
_ATTENDING_GRIDS = tuple(
    Axes.parse(f"op=attend {grid}".split())
    for grid in (
        # Decode and prefill; contexts of 0 and 1, shorter than the queries, that end in mid-block.
        "batch=3 seq_len=21 lengths=holes,ragged query_len=1,4 num_kv_heads=1,3 num_heads=6 "
        "head_dim=64,80 block_size=8 dtype=fp32,bf16",
        "batch=0,1 seq_len=0,1 query_len=1,3 block_size=16",
        # Contexts of whole blocks, for what reads nothing less.
        "batch=2 lengths=equal seq_len=48 query_len=1,3 sliding_window=0,20 num_heads=8 "
        "num_kv_heads=2 head_dim=64 block_size=16 dtype=fp32,bf16",
        # Every layout; a window whose blocks behind have been freed; a shared prefix.
        "layout=NHD,HND,NHD-KV,HND-KV,x-packed batch=2 seq_len=35 query_len=1,3 sliding_window=0,9 "
        "shared_blocks=1 table_padding=1 num_kv_heads=2 num_heads=8 head_dim=64 block_size=8 "
        "kv_input=fused_qkv slot_dtype=int32 block_order=churned",
        "layout=MLA batch=2 seq_len=19 query_len=1,2 num_heads=16 block_size=8 "
        "cache_dtype=auto,fp8_e4m3 kv_scale=per_token",
        # Every format of a quantised pool, with every kind of scales.
        "cache_dtype=fp8_e4m3,fp8_e5m2,int8 kv_scale=per_tensor,per_head,per_token batch=2 "
        "seq_len=19 num_kv_heads=2 num_heads=4 head_dim=64 block_size=8 dtype=bf16,fp32",
        # One head of K and V for up to 128 query heads; contexts of several splits; a soft cap.
        "seq_len=300 query_len=1,17 num_kv_heads=1 num_heads=1,16,128 head_dim=128 soft_cap=0,2 "
        "block_size=16,256 dtype=bf16",
        # Odd sizes; another scale; heads of K and V, and queries, outermost.
        "seq_len=40 num_kv_heads=2 num_heads=6 head_dim=1,33,192,256 query_pre_attn_scalar=7 "
        "block_size=1,1024 dtype=fp16 kv_input=head_major query_len=2",
    )
)

_STEP_GRIDS = tuple(
    Axes.parse(f"op=step {grid}".split())
    for grid in (
        # The new token begins a block, ends one, is in mid-block, is all there is.
        "seq_len=1,16,17 batch=2 lengths=equal num_layers=2 num_kv_heads=2 num_heads=4 head_dim=64 "
        "block_size=16 dtype=fp32,bf16",
        "layout=NHD,HND,NHD-KV,HND-KV,x-packed seq_len=21 batch=3 lengths=ragged num_layers=3 "
        "num_kv_heads=2 num_heads=6 head_dim=80 block_size=8 dtype=fp16,fp32 slot_dtype=int32 "
        "table_padding=1 block_order=churned",
        "batch=0,1 seq_len=0,300 num_layers=1 num_kv_heads=1 num_heads=8 head_dim=64",
    )
)

CHECK_GRIDS = (*_MOVING_GRIDS, *_ATTENDING_GRIDS, *_STEP_GRIDS)
"""What `kvbench check` covers by default: the shapes that have broken KV-cache kernels (but pools
beyond 2**31 elements, which take more memory than a check should)."""


_ENGINE_SHAPES = (
    "batch=3 lengths=holes start_pos=13 seq_len=3 block_size=4 padding=2 kv_input=fused_qkv "
    "missing_blocks=1 table_padding=1 slot_dtype=int32",
    "batch=2 start_pos=15 seq_len=1 block_size=16 kv_input=head_major padding=2",
    "batch=4 lengths=ragged start_pos=35 seq_len=2 block_size=17 shared_blocks=2 padding=1 "
    "padding_slots=absent block_order=churned",
    "batch=0,1 seq_len=0 padding=3",
)
_CODES = "cache_dtype=auto,fp8_e4m3,fp8_e5m2,int8 kv_scale=per_tensor,per_head,per_token"
_ALL_DTYPES = f"dtype=fp32,fp16,bf16 {_CODES}"

EXHAUSTIVE_GRIDS = (
    *CHECK_GRIDS,
    *(
        Axes.parse(f"{_MOVING} {layouts} {_ALL_DTYPES} {shape}".split())
        for shape in _ENGINE_SHAPES
        for layouts in (
            "layout=NHD,HND,NHD-KV,HND-KV,x-packed num_kv_heads=3 num_heads=6 head_dim=80",
            "layout=MLA",
        )
    ),
    *(
        Axes.parse(f"op=attend {layouts} {_ALL_DTYPES} {shape}".split())
        for shape in (
            "batch=3 lengths=holes seq_len=21 query_len=1 block_size=4 table_padding=1 "
            "kv_input=fused_qkv slot_dtype=int32",
            "batch=2 lengths=ragged seq_len=45 query_len=3 sliding_window=0,18 shared_blocks=1 "
            "block_size=17 block_order=churned",
        )
        for layouts in (
            "layout=NHD,HND,NHD-KV,HND-KV,x-packed num_kv_heads=2 num_heads=6 head_dim=80",
            "layout=MLA num_heads=16",
        )
    ),
)
"""What `kvbench check --exhaustive` covers: the default grid, and every layout with every dtype of
K and V, every format of the pool and every kind of scales, over the shapes that engines have."""


def get_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        InputError: There is none; the message names the nearest.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
