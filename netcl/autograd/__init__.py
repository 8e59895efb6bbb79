"""Reverse-mode automatic differentiation: nodes, the tape, and every operation as `ag.<op>`."""

from typing import Any

from netcl.autograd.checkpoint import checkpoint as checkpoint
from netcl.autograd.compiler import AutogradPrimitive as AutogradPrimitive
from netcl.autograd.compiler import TraceNode as TraceNode
from netcl.autograd.compiler import TracingContext as TracingContext
from netcl.autograd.compiler import jit_compile as jit_compile
from netcl.autograd.compiler import register_primitive as register_primitive
from netcl.autograd.compiler import tracing_context as tracing_context
from netcl.autograd.debug import debug_tape as debug_tape
from netcl.autograd.functional import *  # noqa: F403  (the ops; each subject lists its own)
from netcl.autograd.grad import grad as grad
from netcl.autograd.gradcheck import gradcheck as gradcheck
from netcl.autograd.hooks import Handle as Handle
from netcl.autograd.jit.gated import geglu as geglu
from netcl.autograd.jit.gated import swiglu as swiglu
from netcl.autograd.jit.step import CompiledGraph as CompiledGraph
from netcl.autograd.jit.step import CompiledStep as CompiledStep
from netcl.autograd.node import Node as Node
from netcl.autograd.node import Parameter as Parameter
from netcl.autograd.node import tensor as tensor
from netcl.autograd.op import Spec as Spec
from netcl.autograd.op import apply_op as apply_op
from netcl.autograd.op import register_op as register_op
from netcl.autograd.op import register_row as register_row
from netcl.autograd.state import detect_anomaly as detect_anomaly
from netcl.autograd.state import enable_grad as enable_grad
from netcl.autograd.state import inference_mode as inference_mode
from netcl.autograd.state import is_grad_enabled as is_grad_enabled
from netcl.autograd.state import no_grad as no_grad
from netcl.autograd.state import set_detect_anomaly as set_detect_anomaly
from netcl.autograd.state import set_grad_enabled as set_grad_enabled
from netcl.autograd.tape import Tape as Tape
from netcl.autograd.tape import get_current_tape as get_current_tape
from netcl.autograd.tape import set_current_tape as set_current_tape
from netcl.autograd.training_compiler import FusedDetectionLossPlan as FusedDetectionLossPlan
from netcl.autograd.training_compiler import TrainingGraphCompiler as TrainingGraphCompiler
from netcl.autograd.training_compiler import TrainingPattern as TrainingPattern
from netcl.autograd.training_compiler import fused_norm_activation as fused_norm_activation
from netcl.autograd.training_compiler import fused_softmax_cross_entropy as fused_softmax_cross_entropy
from netcl.autograd.training_compiler import fused_weighted_bce_smooth_l1_loss as fused_weighted_bce_smooth_l1_loss
from netcl.moved import attribute
from netcl.ops.record import OPS as OPS
from netcl.ops.record import Op as Op


def __getattr__(name: str) -> Any:
    """Names that users of PyTorch and NumPy know functions by (netcl.core.familiar)."""
    return attribute("netcl.autograd", name)
