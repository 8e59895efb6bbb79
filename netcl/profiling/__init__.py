"""Measuring: timers, per-kernel tables, memory over time, trace files, and the tuner of kernel sizes."""

from netcl.profiling.kernels import KernelProfiler
from netcl.profiling.memory import MemoryTimeline
from netcl.profiling.peak import Peaks, peaks
from netcl.profiling.profile import ProfileContext, region, timing_region
from netcl.profiling.timer import EventTimer, Timer, timing
from netcl.profiling.totals import KernelStats
from netcl.profiling.tune import AutoTuner, Autotuner, AutotuneResult, WorkGroupTuner, autotune

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "Autotuner",
    "EventTimer",
    "KernelProfiler",
    "KernelStats",
    "MemoryTimeline",
    "Peaks",
    "ProfileContext",
    "Timer",
    "WorkGroupTuner",
    "autotune",
    "peaks",
    "region",
    "timing",
    "timing_region",
]
