"""Where modules and names of earlier versions are now: a table of each, so that imports by old paths go on working.

An old path stands in sys.modules as a module that imports the new one when something is asked of it. A module of today
that is asked for an older name (`attribute`, its `__getattr__`) looks it up here, too.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# other names of functions: name: what it is here
SAME = {
    "cat": "concat", "concatenate": "concat", "true_divide": "div", "divide": "div", "multiply": "mul",
    "subtract": "sub", "negative": "neg", "absolute": "abs", "power": "pow", "greater": "gt", "less": "lt",
    "not_equal": "ne", "greater_equal": "ge", "less_equal": "le", "amax": "max", "amin": "min", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "fix": "trunc", "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}  # fmt: skip

# functions of core.familiar
COMPOSED = (  # names by blanks
    "addmm baddbmm bmm broadcast_to count_nonzero dot expand_as fliplr flipud hstack mm moveaxis movedim mv "
    "narrow outer ravel reshape_as select swapaxes swapdims t unbind unflatten view_as vstack"
)

MOVED = {  # below netcl
    "core.rebind": "core.live",
    "core.pocl": "core.device.pocl",
    "core.profile": "core.device.profile",
    "ops.sources": "kernels.sources",
    "ops.plans": "kernels.plans",
    "ops.tuning": "kernels.tuning",
    "ops.chain": "fusion.map",
    "ops.broadcast": "fusion.walk",
    "ops.render": "fusion.render",
    "ops.fold": "fusion.fold",
    "ops.rows": "fusion.rows",
    "ops.multi": "fusion.many",
    "ops.matmul": "ops.product.op ops.older",
    "ops.linear_grad": "ops.product.linear_grad",
    "ops.conv": "ops.convolution.op",
    "ops.winograd": "ops.convolution.winograd",
    "ops.pool": "ops.pooling.op",
    "ops.norm": "ops.normalization.norm",
    "ops.batch_norm": "ops.normalization.batch_norm",
    "ops.group_norm": "ops.normalization.group_norm",
    "ops.softmax": "ops.normalization.softmax",
    "ops.attention": "ops.attend.op",
    "ops.indexing": "ops.index.pick",
    "ops.scatter": "ops.index.scatter",
    "ops.sort": "ops.index.sort",
    "ops.scan": "ops.index.scan",
    "ops.loss": "ops.losses.loss",
    "ops.cross_entropy": "ops.losses.cross_entropy",
    "ops.fill": "ops.create.fill",
    "ops.random": "ops.create.random",
    "ops.matrix_units.precision": "ops.nvidia.precision",
    "autograd.trace": "autograd.jit.trace",
    "autograd.program": "autograd.jit.program",
    "autograd.report": "autograd.jit.report",
    "autograd.step": "autograd.jit.step",
    "autograd.shapes": "autograd.jit.shapes",
    "autograd.primitive": "autograd.jit.primitive",
    "ops.matrix_units": "ops.nvidia",
    "ops.fused_ops": "ops.older",
    "ops.conv2d_planner": "ops.older ops.convolution.op",
    # paths of older pages, which never held code here; several homes are searched in order
    "core.capabilities": "core.device.profile",
    "core.kernel_selector": "kernels.tuning",
    "runtime.graph_fusion": "autograd.compiler",
    "autograd.engine": "autograd.tape autograd.node autograd.op autograd.state autograd.debug",
    "autograd.graph": "autograd.jit.step",
    "autograd.debug_tape": "autograd.debug",
    "nn.layers": "nn",
    "nn.resnet": "nn.models.resnet",
    "optim.schedule": "optim.lr_scheduler",
    "nn.simple": "nn.models.mlp",
    "profiling.timing": "profiling.timer profiling.profile",
    "profiling.autotuner": "profiling.tune",
    "runtime.perf": "profiling.timer profiling.profile",
    "utils.data": "data",
}

NAMES = {  # below netcl: an older name, the module where it is, and after a colon its name there if another
    **dict.fromkeys(("bias_add", "build_matmul_kernel", "conv2d", "elementwise_binary"), "ops"),
    **dict.fromkeys(("matmul", "reduce_sum", "relu", "softmax"), "ops"),
    "KernelSpec": "kernels.tuning",
    "ops.bias_add": "ops.older",
    "ops.build_matmul_kernel": "ops.older",
    "ops.clamp": "ops.older",
    "ops.depthwise_conv2d": "ops.older",
    "ops.elementwise_binary": "ops.older",
    "ops.elementwise_optimized": "ops.older",
    "ops.elementwise_unary": "ops.older",
    "ops.matmul_optimized": "ops.older",
    "ops.winograd_fused": "ops.older",
    **{f"ops.MATMUL_{name}": "ops.older" for name in ("NAIVE", "REGISTER_TILED", "TILED", "VECTORIZED")},
    **{f"ops.CONV2D_{name}": "ops.older" for name in ("IM2COL", "IMPLICIT_GEMM", "NAIVE", "TILED_LOCAL", "WINOGRAD")},
    "core.kernels.primitives.KernelSpec": "kernels.tuning",
    "core.kernels.primitives.WorkGroupTuner": "profiling.tune",
    "runtime.cache.program_cache": "runtime.cache:cacher",
    "runtime.cache.KernelHandle": "core.backend.opencl:Kernel",
    **{f"{home}.{name}": f"{home}:{here}" for home in ("ops", "autograd") for name, here in SAME.items()},
    **{f"ops.{name}": "core.familiar" for name in COMPOSED.split()},
    **{f"autograd.{name}": "autograd.familiar" for name in COMPOSED.split()},
    "ops.randperm": "ops:permutation",
    "autograd.clamp": "autograd.familiar",
    "runtime.graph_fusion.fuse_graph": "autograd.compiler:jit_compile",
}


class Moved(ModuleType):
    """A module by its old path."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"netcl.{old}", f"netcl.{new} by its old path.")
        self.__dict__["_new"] = [f"netcl.{home}" for home in new.split()]

    def _homes(self) -> list[ModuleType]:
        return [importlib.import_module(home) for home in self.__dict__["_new"]]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in self._homes():
                if hasattr(home, name):
                    return getattr(home, name)
        return attribute(self.__name__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            homes = self._homes()
            setattr(next((home for home in homes if hasattr(home, name)), homes[0]), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(next((home for home in self._homes() if hasattr(home, name)), self._homes()[0]), name)

    def __dir__(self) -> list[str]:
        return sorted({name for home in self._homes() for name in dir(home)})


def install() -> None:
    """Make the old paths importable."""
    for old, new in MOVED.items():
        sys.modules.setdefault(f"netcl.{old}", Moved(old, new))


def attribute(module: str, name: str) -> Any:
    """An older name of a module, or a module by its old path: for `__getattr__`. Raises AttributeError for others."""
    path = f"{module}.{name}".removeprefix("netcl.")
    if path in NAMES:
        home, _, today = NAMES[path].partition(":")
        return getattr(importlib.import_module(f"netcl.{home}"), today or name)
    if path in MOVED:
        return sys.modules[f"netcl.{path}"]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
