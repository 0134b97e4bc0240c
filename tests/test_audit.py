"""The audit of machine code: each property is seen to be broken where it is, and what is read."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import FunctionType

import pytest

pytest.importorskip("triton")

import doctored

from kvbench import cli
from kvbench.audit import (
    accesses,
    addresses,
    compiling,
    cuda,
    elf,
    findings,
    machine,
    record,
    ttir,
)
from kvbench.audit import specialisations as planned
from kvbench.audit.accesses import Access
from kvbench.audit.simulated import simulated_gpu
from kvbench.audit.targets import TARGETS, get_targets
from kvbench.errors import InputError, KvbenchError, StoreError
from kvbench.kernels import jit
from kvbench.kernels.report import KERNELS
from kvbench.report import machine_code

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "machine-code.json"
NVIDIA = [target for target in TARGETS.values() if target.backend == "cuda"]

pytestmark = pytest.mark.skipif(jit.interpreting(), reason="TRITON_INTERPRET: nothing is compiled")


# How many warps run at once.


@pytest.mark.parametrize(
    ("target", "registers", "shared_bytes", "warps", "expected"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread let 12
        # blocks of 128 threads run, and 4 of 320 (of capability 7.0, whose limits are those of
        # 8.0 but for shared memory).
        ("sm_80", 37, 0, 4, 12 * 4 / 64),
        ("sm_80", 37, 0, 10, 4 * 10 / 64),
        # 65,536 registers for 2,048 threads, or for 1,536.
        ("sm_80", 32, 0, 8, 1.0),
        ("sm_80", 33, 0, 8, 6 * 8 / 64),
        ("sm_89", 40, 0, 8, 1.0),
        ("sm_120", 41, 0, 8, 5 * 8 / 48),
        ("sm_90", 255, 0, 8, 8 / 64),
        # Blocks of one warp: 32 of them, or 24.
        ("sm_90", 16, 0, 1, 32 / 64),
        ("sm_120", 16, 0, 1, 24 / 48),
        # With the 1 KiB that is reserved for each: 3 of 164 KiB, 4 of 228.
        ("sm_80", 16, 48 << 10, 4, 3 * 4 / 64),
        ("sm_90", 16, 48 << 10, 4, 4 * 4 / 64),
        ("sm_90", 16, 227 << 10, 4, 4 / 64),
        # LLVM's llvm-calc-occupancy: 512 threads with 50 VGPRs leave 8 wavefronts a SIMD.
        ("gfx942", 50, 0, 8, 1.0),
        ("gfx942", 128, 0, 4, 16 / 32),
        ("gfx942", 215, 0, 4, 8 / 32),
        ("gfx942", 16, 40 << 10, 4, 4 / 32),
        ("gfx942", 16, 0, 1, 1.0),
    ],
)
def test_occupancy_is_that_of_the_published_limits(
    target, registers, shared_bytes, warps, expected
):
    assert TARGETS[target].occupancy(registers, shared_bytes, warps) == expected


def test_targets_are_those_that_are_named_in_their_own_order():
    assert [each.name for each in get_targets(())] == list(TARGETS)
    assert [each.name for each in get_targets(["gfx942", "sm_90"])] == ["sm_90", "gfx942"]
    with pytest.raises(InputError, match=r"unknown target 'sm_91' \(did you mean 'sm_90'\?\)"):
        get_targets(["sm_91"])


# What is read.

SASS = """
	code for sm_90a
        /*0130*/                   LDG.E.128 R4, desc[UR4][R6.64] ;    /* 0x0000000406088981 */
                                                                       /* 0x0002a2000c1e1b00 */
        /*0140*/              @!P0 LDG.E.64 R8, desc[UR4][R6.64] ;
        /*0150*/                   LDG.E.U16.CONSTANT R8, desc[UR4][R6.64] ;
        /*0160*/                   LDGSTS.E.BYPASS.LTC128B.128 [R215+0x80], desc[UR6][R8.64] ;
        /*0170*/                   LDGSTS.E [R215], [R8.64] ;
        /*0180*/                   STG.E desc[UR4][R6.64], R4 ;
        /*0190*/                   STG.E.U8 desc[UR4][R6.64], R4 ;
        /*01a0*/                   LDS.128 R4, [R6] ;
        /*01b0*/                   STL.128 [R1+0x10], R4 ;
        /*01c0*/                   STL [R1], R4 ;
        /*01d0*/                   LDL.64 R4, [R1+0x10] ;
        /*01e0*/                   LDC.64 R4, c[0x0][0x28] ;
        /*01f0*/                   ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R6.64], R4 ;
        /*0200*/                   UTMALDG.2D [UR8], [UR4] ;
"""


def test_accesses_are_counted_in_sass_by_their_widths():
    read = accesses.read_sass(SASS)
    assert accesses.widths_of(read.accesses, "load") == {2: 1, 4: 1, 8: 1, 16: 2}
    assert accesses.widths_of(read.accesses, "store") == {1: 1, 4: 1}
    assert (read.local_stores, read.local_loads) == (20, 8)
    assert read.others == ("ATOMG.E.ADD.STRONG.GPU", "UTMALDG.2D")


PTX = """
	.loc	2 32 19                         // offsets.py:32:19 @[ scatter.py:59:71 ]
	@%p1 ld.global.b64 { %rd1 }, [ %rd2 + 0 ];
	ld.param.b32 	%r14, [_scatter_kv_param_12];
	.loc	1 76 28                         // scatter.py:76:28
	@%p2 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd3 + 0 ];
	ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [ %r3 + 0 ];
	.loc	1 0 20                          // scatter.py:0:20
	@%p2 st.global.v2.b16 [ %rd4 + 0 ], { %rs1, %rs2 };
	.loc	1 164 24                        // attend_parts.py:164:24 @[ attend.py:56:81 ]
	cp.async.cg.shared.global [ %r88 + 0 ], [ %rd18 + 0 ], 0x10, %r97;
	@%p11 cp.async.ca.shared.global [ %r84 + 0 ], [ %rd16 + 0 ], 0x8, %r85;
"""


def test_accesses_are_found_in_ptx_with_their_lines():
    assert accesses.read_ptx(PTX) == (
        Access("load", 8, "offsets.py:32"),
        Access("load", 16, "scatter.py:76"),
        Access("store", 4, ""),
        Access("load", 16, "attend_parts.py:164"),
        Access("load", 8, "attend_parts.py:164"),
    )


AMDGCN = """
	.loc	2 32 19                         ; offsets.py:32:19 @[ scatter.py:59:71 ]
	buffer_load_dwordx2 v[4:5], v1, s[24:27], 0 offen
	.loc	1 76 28                         ; scatter.py:76:28
	buffer_load_ushort v18, v3, s[36:39], 0 offen
	buffer_load_short_d16_hi v18, v3, s[36:39], 0 offen
	global_load_dwordx4 v[0:3], v[0:1], off
	global_store_dword v[0:1], v2, off
	s_load_dword s2, s[0:1], 0x48
	ds_read_b128 v[0:3], v4
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 16
    .sgpr_count:     46
    .vgpr_count:     22
    .vgpr_spill_count: 3
"""


def test_accesses_and_resources_are_read_from_amdgcn():
    assert accesses.read_amdgcn(AMDGCN) == (
        Access("load", 8, "offsets.py:32"),
        Access("load", 2, "scatter.py:76"),
        Access("load", 2, "scatter.py:76"),
        Access("load", 16, "scatter.py:76"),
        Access("store", 4, "scatter.py:76"),
    )
    assert machine.amd_resources(AMDGCN) == machine.Resources(
        registers=22, stack_bytes=16, local_bytes=0, shared_bytes=4096, spill_bytes=12
    )
    with pytest.raises(KvbenchError, match=r"there is no \.vgpr_count; expected a kernel's"):
        machine.amd_resources("")


def test_resources_are_read_from_cuobjdump():
    told = """
Resource usage:
 Common:
  GLOBAL:0
 Function _scatter_kv:
  REG:32 STACK:8 SHARED:1024 LOCAL:4 CONSTANT[0]:640 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function other:
  REG:255 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:640 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
    assert machine.parse_resources(told) == {
        "_scatter_kv": machine.Resources(32, 8, 4, 1024, 0),
        "other": machine.Resources(255, 0, 0, 0, 0),
    }


def test_what_is_no_object_file_is_refused():
    with pytest.raises(ValueError, match=r"begins with b'nothin'; expected b'\\x7fELF"):
        elf.code_sections(b"nothing")


def test_the_share_of_vectors_is_of_bytes():
    assert accesses.vector_share([Access("load", 16), Access("store", 8)]) == 16 / 24
    assert accesses.vector_share([]) is None


def test_ttir_that_is_not_understood_is_refused():
    for line in ("%0 = tt.atomic_rmw add, %1, %2 : i32", "%0 = scf.while (%1 = %2) : i32 {"):
        with pytest.raises(ttir.UnreadableError):
            ttir.read(f"module {{\n  {line}\n}}")


# What is compiled: every form that the GPU preset asks for.


@pytest.fixture(scope="module")
def specialisations():
    return {backend: planned.specialisations(backend) for backend in ("cuda", "hip")}


def test_every_kernel_is_planned_and_no_two_forms_have_one_name(specialisations):
    for every in specialisations.values():
        names = [(each.kernel, each.name) for each in every]
        assert len(set(names)) == len(names) > 100
        assert {kernel for kernel, _ in names} == set(planned.functions())
    told = {name for _, name in names}
    # Each tile that a GPU may be fastest with; both forms of an attention; parts to merge.
    tiles = ("1 tokens x 1024", "1 tokens x 256", "1 tokens x 512", "2 tokens x 1024")
    assert {f"8 heads x 128+128 bf16, {tile}" for tile in tiles} <= told
    assert "32/8 heads x 128+128 bf16, 16 rows x 64 tokens, split" in told
    assert "32/8 heads x 128+128 bf16 in fp8_e4m3 per_token, 16 rows x 32 tokens" in told
    assert {f"32 heads x 128 bf16, {parts} parts" for parts in (4, 8, 16, 32, 64)} <= told


@pytest.fixture(scope="module")
def committed():
    return record.read(RECORD)


def test_the_committed_findings_are_of_every_form_and_target(specialisations, committed):
    # What they are is for `make audit` to see.
    expected = {
        (target.name, each.kernel, each.name)
        for target in TARGETS.values()
        for each in specialisations[target.backend]
    }
    found = {(f.target, f.kernel, f.specialisation) for f in committed.findings if not f.is_cuda}
    assert found == expected
    assert {f.target for f in committed.findings if f.is_cuda} == {each.name for each in NVIDIA}


def test_the_committed_findings_have_no_fault_and_no_gap_that_is_closed(committed):
    assert findings.open_faults(committed.findings) == ()
    assert findings.stale_gaps(committed.findings) == ()
    assert findings.known_gaps(committed.findings) == findings.GAPS


def test_kernels_that_move_rows_leave_registers_for_most_of_a_multiprocessor(committed):
    # Of 65,536: at 32 all of 2,048 threads run, at 40 all of 1,536, at 64 half of 2,048.
    for each in committed.findings:
        if each.kernel.startswith(("scatter", "gather")) and each.target != "gfx942":
            assert each.registers <= (64 if "x-packed" in each.specialisation else 40)
        if each.is_cuda:
            assert each.occupancy == 1


# What is seen to be broken.


def found_of(specialisation, target="sm_90"):
    (finding,) = compiling.compile_all([specialisation], TARGETS[target])
    return finding


def of_kernel(specialisations, kernel, name=""):
    return next(
        each for each in specialisations["cuda"] if each.kernel == kernel and name in each.name
    )


def properties(finding):
    return {fault.property for fault in finding.faults}


def test_a_kernel_as_it_is_has_no_fault(specialisations):
    finding = found_of(of_kernel(specialisations, "scatter_kv", "8 heads x 128+128 bf16"))
    assert finding.faults == ()
    assert (finding.loads, finding.stores) == ({8: 1, 16: 2}, {16: 2})
    assert (finding.vector_share, finding.spill_bytes, finding.shared_bytes) == (1.0, 0, 0)
    assert 0 < finding.registers <= 32
    assert finding.occupancy == 1
    assert finding.code_bytes % 16 == 0 < finding.code_bytes


def with_helper(kernel, function):
    """A kernel of the package with a helper that another function stands in for."""
    (own,) = (each for each in KERNELS if each.name == kernel)
    name = function.__name__.partition("__")[0]
    helper = FunctionType(function.__code__, function.__globals__, name)
    helper.__annotations__ = function.__annotations__
    kept = [each for each in own.helpers if each.__name__ != name]
    assert len(kept) == len(own.helpers) - 1
    return jit.Kernel(own.fn, helper, *kept)


@pytest.mark.parametrize(
    ("kernel", "helper", "property_", "message"),
    [
        (
            "scatter_kv",
            doctored.slots_of_tokens__narrow,
            "addresses",
            "a product in an offset of k",
        ),
        ("gather_kv", doctored.slots_of_tokens__narrow, "addresses", "has 32 bits; expected 64"),
        ("scatter_kv", doctored.slot_pointers__cut, "addresses", "what is left of a product in"),
        ("scatter_kv", doctored.slots_of_tokens__unpadded, "padding", "no negative slot"),
        ("scatter_kv", doctored.slots_of_tokens__shifted, "padding", "a slot of 0 or more"),
        ("scatter_kv", doctored.tile_mask__either, "padding", "a store of key_pool: its mask does"),
        ("scatter_kv", doctored.tile_mask__without, "padding", "a store of value_pool: its mask"),
        ("gather_kv", doctored.tile_mask__without, "padding", "a store of key: its mask does not"),
        ("scatter_kv", doctored.row_pointers__untold, "widths", "loads of key are 2 bytes wide; e"),
        ("attend", doctored.load_head__unbounded, "padding", "its mask does not end with the con"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_doctored_kernel_is_caught(
    kernel, helper, property_, message, specialisations, monkeypatch
):
    functions = {**planned.functions(), kernel: with_helper(kernel, helper).compiled}
    monkeypatch.setattr(planned, "functions", lambda: functions)
    finding = found_of(of_kernel(specialisations, kernel, "128 bf16"))
    texts = [fault.text for fault in finding.faults if fault.property == property_]
    assert any(message in text for text in texts), finding.faults
    assert properties(finding) == {property_}


def test_slots_that_are_made_of_no_block_are_caught(specialisations):
    made = of_kernel(specialisations, "map_slots")
    with simulated_gpu(TARGETS["sm_90"]):
        text = made.wanted.compile(TARGETS["sm_90"]).asm["ttir"]
    assert addresses.padding_faults(ttir.read(text)) == ()
    # Without the choice between a slot and -1.
    chosen = re.search(r"(%\w+) = arith\.select %\w+, %\w+, (%\w+)", text)
    broken = re.sub(rf"tt\.store (%\w+), {chosen[1]},", rf"tt.store \1, {chosen[2]},", text)
    assert broken != text
    (fault,) = addresses.padding_faults(ttir.read(broken))
    assert fault.endswith("a store of slot_mapping: a block that is none makes no negative slot")


def test_registers_that_are_spilled_are_caught(specialisations, monkeypatch):
    made = of_kernel(specialisations, "merge_attend")
    wanted = made.wanted
    few = dataclasses.replace(wanted, options={**wanted.options, "maxnreg": 32})
    monkeypatch.setattr(planned.Specialisation, "wanted", few)
    finding = found_of(made)
    assert properties(finding) >= {"spills", "local"}
    assert finding.spill_bytes > 0 < finding.stack_bytes


def test_more_shared_memory_than_a_block_may_have_is_caught():
    used = machine.Resources(32, 0, 0, 65_537, 0)
    (fault,) = used.faults(TARGETS["gfx942"])
    assert fault.property == "shared"
    assert fault.text == "a block has 65537 bytes of shared memory; expected up to 65536"
    assert used.faults(TARGETS["sm_90"]) == ()


def test_vectors_that_the_assembler_lost_are_caught():
    (fault,) = findings.lost_vectors({16: 4, 8: 1}, {16: 3, 8: 3}, "loads")
    assert fault.text == "the machine code has 3 loads of 16 bytes; expected 4, as PTX"
    assert findings.lost_vectors({16: 4, 8: 1}, {16: 4, 4: 1}, "loads") == ()


def test_a_gap_that_is_closed_is_a_fault(committed):
    gap = findings.GAPS[0]
    (one, *_) = (
        f for f in committed.findings if (f.target, f.kernel) == (gap.target, "attend") and f.faults
    )
    assert findings.open_faults([one]) == ()
    assert findings.stale_gaps([one]) == ()
    closed = dataclasses.replace(one, faults=())
    (line,) = findings.stale_gaps([closed])
    assert line.startswith("attend on gfx942: the known gap (K and V are accessed 16 bytes at")
    # It covers its own property and target alone.
    fault = findings.Fault("spills", "4 bytes of a thread are spilled; expected 0")
    spilled = dataclasses.replace(one, faults=(*one.faults, fault))
    elsewhere = dataclasses.replace(one, target="sm_90")
    assert findings.open_faults([spilled]) == ((spilled, fault),)
    assert len(findings.open_faults([elsewhere])) == len(one.faults) > 0


# CUDA C++.


def test_cuda_kernels_are_for_nvidia_s_gpus_alone():
    missing = cuda.compile_cuda(TARGETS["gfx942"], cuda.KERNELS)
    assert missing.reason == "CUDA C++ is for NVIDIA GPUs alone"


def test_without_a_compiler_the_reason_is_told(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(cuda.nvrtc, "library", lambda: None)
    missing = cuda.compile_cuda(TARGETS["sm_90"], ("gather_kv",))
    assert (missing.kernels, missing.target) == ("cuda gather_kv", "sm_90")
    assert missing.reason == "nvcc is not on the PATH, and NVRTC (libnvrtc.so) is not installed"
    assert cuda.compiler() == ""


def test_cuda_kernels_that_narrow_a_vector_are_caught():
    slot, vector = Access("load", 8), Access("store", 16)
    assert cuda._without_slot((vector, slot, slot)) == (vector, slot)
    (fault,) = cuda._width_faults((vector, slot))
    assert fault.text == "1 accesses are 8 bytes wide; expected 16"
    assert cuda._width_faults((vector,)) == ()


def test_cuda_kernels_move_vectors_and_a_slot():
    found = cuda.compile_cuda(TARGETS["sm_90"], ("scatter_kv",))
    if isinstance(found, findings.Missing):
        pytest.skip(found.reason)
    (one,) = found
    assert (one.specialisation, one.faults) == ("scatter_kv<uint4, long long, 8>", ())
    assert (one.loads, one.stores, one.vector_share) == ({8: 1, 16: 2}, {16: 2}, 1.0)
    assert re.fullmatch(r"nvcc \d+\.\d+|NVRTC", cuda.compiler())


# Findings as a file, as tables, and as a command.


def test_findings_are_read_as_they_were_written(committed, tmp_path):
    path = tmp_path / "findings.json"
    record.write(committed, path)
    assert record.read(path) == committed
    assert path.read_text() == RECORD.read_text()
    json.loads(path.read_text())


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', "[]"])
def test_what_is_no_record_is_refused(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"x\.json: expected a file of kvbench audit --json"):
        record.read(path)


def test_a_record_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        record.read(tmp_path / "none.json")


def test_what_differs_from_a_record_is_told_for_what_was_compiled(committed):
    one, other, *_ = (f for f in committed.findings if (f.target, f.kernel) == ("sm_80", "attend"))
    before = dataclasses.replace(committed, findings=(one, other))
    changed = dataclasses.replace(one, registers=one.registers + 1)
    after = dataclasses.replace(committed, findings=(changed,))
    where = f"attend for sm_80, {one.specialisation}"
    assert record.differences(before, after, ["attend"]) == [
        f"{where}: registers {one.registers} -> {one.registers + 1}",
        f"attend for sm_80, {other.specialisation}: not compiled any more",
    ]
    assert record.differences(after, before, ["attend"])[1].endswith("not in the record")
    assert record.differences(before, after, ["gather_kv"]) == []
    assert record.differences(committed, committed, ["attend"]) == []
    (line,) = record.differences(dataclasses.replace(before, triton="1.0"), after, ["attend"])
    assert line == f"the record is of Triton 1.0, and this is {committed.triton}"


def test_a_line_has_the_worst_of_a_kernel_s_forms(committed):
    every = [f for f in committed.findings if (f.target, f.kernel) == ("sm_80", "gather_kv")]
    (row,) = machine_code.worst_table(every).rows
    assert row[:3] == ("sm_80", "gather_kv", str(len(every)))
    assert row[3] == str(max(f.registers for f in every))
    assert row[-1] == f"{max(f.code_bytes for f in every):,}"
    assert len(machine_code.every_table(every).rows) == len(every)
    assert row[-3] == "75 to 100 %"


@pytest.fixture
def audit(monkeypatch, capsys):
    """Run the command in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kvbench", "audit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def planned_once(specialisations, monkeypatch):
    """What planning finds, without planning anew."""
    monkeypatch.setattr("kvbench.audit.run.specialisations", specialisations.__getitem__)


@pytest.mark.usefixtures("planned_once")
def test_the_command_compares_with_a_record_and_prints_what_holds(audit, tmp_path, monkeypatch):
    one = ("--target", "gfx942", "--kernel", "map_slots")
    path = tmp_path / "found.json"
    code, out, err = audit(*one, "--markdown", "--compare", RECORD, "--json", path)
    assert (code, err) == (0, "")
    assert "| gfx942 | map_slots | 10 |" in out
    assert "- no register is spilled: holds" in out
    found = record.read(path).findings
    assert len(found) == 10
    # Something else was found before.
    changed = (dataclasses.replace(found[0], code_bytes=1), *found[1:])
    record.write(dataclasses.replace(record.read(path), findings=changed), path)
    monkeypatch.setenv("COLUMNS", "250")
    code, out, err = audit(*one, "--all", "--compare", path)
    assert code == 1
    assert f"code_bytes 1 -> {found[0].code_bytes}" in " ".join(err.split())
    assert found[-1].specialisation in out


@pytest.mark.usefixtures("planned_once")
def test_the_command_fails_with_a_fault(audit, monkeypatch):
    monkeypatch.setattr(compiling.addresses, "address_faults", lambda _: ("x.py:1: a fault",))
    code, out, err = audit("--target", "gfx942", "--kernel", "map_slots")
    assert code == 1
    assert "fault: map_slots for gfx942, blocks of 16, i64: x.py:1: a fault" in err
    assert "offsets of pools are multiplied in 64 bits: 10 faults" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "sm_91"), "unknown target 'sm_91' (did you mean 'sm_90'?); expected one of"),
        (("--kernel", "atend"), "unknown kernel 'atend' (did you mean 'attend'?); expected one of"),
        (("--compare", "none.json"), "none.json: No such file or directory"),
        (("--json", __file__ + "/x.json"), "x.json': expected a file that can be written"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, audit):
    code, out, err = audit(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_without_triton_there_is_nothing_to_compile_with(audit, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert audit()[0] == 2
    assert "the package triton is not installed; expected it" in audit()[2]


def test_interpreted_kernels_are_not_compiled(audit, monkeypatch):
    monkeypatch.setattr(jit, "interpreting", lambda: True)
    code, _, err = audit("--target", "sm_90")
    assert code == 2
    assert "TRITON_INTERPRET is set: expected it unset" in err


@pytest.mark.slow
def test_two_processes_find_for_two_targets_what_is_committed(audit):
    targets = ("--target", "sm_80", "--target", "gfx942")
    code, out, err = audit(*targets, "--kernel", "*gather*", "--compare", RECORD)
    assert (code, "out of date" in err) == (0, False), err
    assert "cuda gather_kv for gfx942: CUDA C++ is for NVIDIA GPUs alone" in out
