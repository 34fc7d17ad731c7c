"""A target that compiles kernels with LLVM: `stagefold.compile(f, options={"codegen.target": "llvm"})`.

A unit's source is LLVM's assembly (`stagefold_llvm_kernels` writes it), one function of the C interface a kernel.
llvmlite compiles it for the processor at hand. Each kernel is one thread's work.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from stagefold_llvm_kernels import LACKS, KernelWriter

from codegen.load import run_addresses
from codegen.targets import Target
from codegen.wrapper import launch_each, write_unit
from stagewire.loop import Kernel
from stagewire.program import Launch
from stagewire.substitution import map_sizes


class LLVMTarget(Target):
    name, interface, suffix = "llvm", 1, "ll"
    lacks = LACKS

    def emit(self, graph, options, hints=None, multiples=()):
        module = ir.Module("kernels")
        types = {buffer.name: buffer.type for buffer in graph.buffers}
        infos, launches = launch_each(graph)
        for kernel in (step for step in graph.steps if isinstance(step, Kernel)):
            buffers, sizes = launches[kernel.name].buffers, sizes_in(kernel)
            launches[kernel.name] = Launch(kernel.name, buffers, sizes)
            KernelWriter(module, kernel, buffers, types, sizes).write()
        return write_unit(graph, launches, target=self.name, source=str(module) if infos else "", kernels=infos)

    def load(self, units, directory, executor):
        return [run_addresses(unit, *compiled(unit), directory, executor) for unit in units]


def sizes_in(kernel):
    """The size expressions of a kernel: the native executor computes them, kernels take numbers."""
    found = {}
    map_sizes(kernel, lambda size: found.setdefault(size, size))
    return tuple(found)


def compiled(unit):
    """The addresses of a unit's kernels, and what keeps their code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features, text = llvm.get_host_cpu_features(), unit.source
    if features.get("avx"):  # functions of the math library may use SSE, which waits for upper halves of registers
        text = text.replace("entry:\n", "entry:\n  call void @llvm.x86.avx.vzeroupper()\n")
        text += "\ndeclare void @llvm.x86.avx.vzeroupper()\n"
    machine = llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(), features.flatten(), opt=3
    )
    module = llvm.parse_assembly(text)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return {kernel.name: engine.get_function_address(kernel.name) for kernel in unit.kernels}, engine


TARGET = LLVMTarget()
