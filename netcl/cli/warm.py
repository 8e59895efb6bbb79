"""Build the kernels of a model ahead of need, so that later starts find them: run it once on made-up data.

MODEL is a file that `netcl.save` wrote, a model of netcl.nn.models by its name (resnet18), or module:callable, what
makes a model, given a queue if it takes one. Kernels depend on the device, on shapes and types, on how the model is
trained; name those of your program:

    netcl warm resnet18 --shape 3,224,224 --batch 1,32
    netcl warm mine:network --shape 1,28,28 --batch 64 --train --optimizer SGD --options momentum=0.9
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from netcl.cli.values import error_text, whole
from netcl.core.dtypes import FLOAT32, FLOAT64, NARROW

HELP = "build the kernels of a model ahead of need"
DTYPES = tuple(t.name for t in (FLOAT32, *NARROW, FLOAT64))
OF_CLASSES = ("cross_entropy", "nll_loss")
LOSSES = (*OF_CLASSES, "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits")
IMAGES = (3, 224, 224)  # what the models of netcl.nn.models take where no shape is given


class Built(NamedTuple):
    """A kernel that was run for the first time: its name, group, and the seconds since the one before it."""

    name: str
    group: tuple[int, ...] | None
    seconds: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what it is given, and what is done with it."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", metavar="MODEL", help="a file, a name of netcl.nn.models, or module:callable")
    parser.add_argument("--shape", type=_wholes, help="of one input, as in 3,224,224 (default: by the model if clear)")
    parser.add_argument("--batch", type=_wholes, default=(1,), metavar="N,...", help="batch sizes (default 1)")
    parser.add_argument("--dtype", choices=DTYPES, help="of parameters and input (default: the model's, float32)")
    parser.add_argument("--tokens", action="store_true", help="the input is of indices, for models that begin so")
    parser.add_argument("--train", action="store_true", help="a step of training: gradients and optimizer, too")
    parser.add_argument(
        "--loss", default="cross_entropy", metavar="NAME", help="of netcl.ag, of --train (default %(default)s)"
    )
    parser.add_argument(
        "--optimizer", default="AdamW", metavar="NAME", help="of netcl.optim, of --train (default %(default)s)"
    )
    parser.add_argument("--options", nargs="+", type=_option, default=[], metavar="KEY=NUMBER", help="of the optimizer")
    parser.add_argument("--jit", action="store_true", help="as ag.jit_compile runs the model, with fused kernels")
    parser.add_argument("--device", default="auto", help='"auto", "gpu", "cl:cpu", ... (netcl devices)')
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _wholes(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them."""
    return tuple(map(whole(1), text.split(",")))


def _option(text: str) -> tuple[str, float]:
    """KEY=NUMBER."""
    key, _, value = text.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected KEY=NUMBER, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Build, and say what was built and where it is."""
    from netcl.core.device import manager
    from netcl.core.errors import NetclError
    from netcl.runtime.cache import cacher

    queue = manager.default(args.device).queue
    if getattr(queue, "device", None) is None:
        raise NetclError(f"warm: expected an OpenCL device, got {args.device!r}: NumPy has no kernels to build.")
    if not cacher.limit or cacher.cache_dir is None:
        why = "NETCL_CACHE_MB is 0" if not cacher.limit else "there is no folder of the user's own; set NETCL_CACHE_DIR"
        raise NetclError(f"warm: expected a place to keep programs in, got none: {why}.")
    stats = cacher.stats
    builds, found, start = stats.builds, stats.disk_hits, time.perf_counter()
    cacher.quiet = True  # the progress below says as much
    try:
        kernels = _warm(args, queue)
    finally:
        cacher.quiet = False
    result = {
        "model": args.model,
        "device": queue.device.name.strip(),
        "batches": list(args.batch),
        "train": args.train,
        "programs_built": stats.builds - builds,
        "programs_found": stats.disk_hits - found,
        "kernels": [kernel._asdict() for kernel in kernels],
        "seconds": round(time.perf_counter() - start, 3),
        "folders": _folders(queue),
    }
    print(json.dumps(result, indent=2) if args.json else _report(result))
    return 0


def _report(result: dict[str, Any]) -> str:
    """The result in two or three lines."""
    slow = sorted(result["kernels"], key=lambda kernel: -kernel["seconds"])[:3]
    names = ", ".join(f"{kernel['name']} {kernel['seconds']:.1f} s" for kernel in slow if kernel["seconds"] >= 0.1)
    head = f"{result['model']} on {result['device']}: {len(result['kernels'])} kernels of "
    head += f"{result['programs_built']} programs built and {result['programs_found']} found"
    lines = [f"{head} in {result['seconds']:.1f} s", f"longest: {names}" if names else ""]
    return "\n".join([*filter(None, lines), *(f"kept in {folder}" for folder in result["folders"])])


def _folders(queue: Any) -> list[str]:
    """Where what was built is kept."""
    from netcl.core.device import pocl
    from netcl.core.driver import pocl_folder
    from netcl.runtime.cache import cacher

    return [str(cacher.cache_dir), *([str(pocl_folder())] if pocl.is_pocl(queue.device) else [])]


def _warm(args: argparse.Namespace, queue: Any) -> list[Built]:
    """Run the model once for each batch size; the kernels that it launched."""
    from netcl.core.backend import opencl
    from netcl.core.errors import NetclError

    model = _model(args.model, queue)
    shape = args.shape or _shape(args, model)
    if args.dtype is not None:
        model.to(args.dtype)
    step, kernels = _step(args, model, queue), list[Built]()
    watch = _watcher(queue, kernels, sys.stderr.isatty() and not args.json)
    opencl.hooks.append(watch)
    try:
        for batch in args.batch:
            step((batch, *shape))
        queue.finish()
    except NetclError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise NetclError(
            f"warm: {args.model} failed on inputs {(batch, *shape)}; give --shape, or --tokens where it takes indices: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        opencl.hooks.remove(watch)
        if sys.stderr.isatty() and not args.json:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return kernels


def _watcher(queue: Any, kernels: list[Built], shown: bool) -> Any:
    """A hook of launches that waits for the first of each kernel and group, since some drivers compile there."""
    seen, last = set(), time.perf_counter()

    def watch(kernel: Any, _queue: Any, _size: Any, group: Any, _args: Any, _event: Any) -> None:
        nonlocal last
        if (kernel, group) not in seen:
            seen.add((kernel, group))
            queue.finish()
            now = time.perf_counter()
            kernels.append(Built(kernel.name, group, round(now - last, 4)))
            last = now
            if shown:
                print(f"\r\x1b[K{len(kernels)} kernels, {kernel.name}", end="", file=sys.stderr, flush=True)

    return watch


def _model(name: str, queue: Any) -> Any:
    """The model of a file, of the zoo, or of a callable."""
    from netcl.core.errors import NetclError
    from netcl.io import load_model
    from netcl.nn import models
    from netcl.nn.module import Module

    known = {key.lower(): key for key in models.__all__ if key.lower().startswith("resnet") and key != "ResNet"}
    if Path(name).is_file() or name.endswith((".netcl", ".safetensors")):
        return load_model(name, queue)
    if name.lower() in known:
        return getattr(models, known[name.lower()])(queue)
    module, colon, attribute = name.partition(":")
    if not colon:
        choices = ", ".join(known.values())
        raise NetclError(f"warm: expected a file, one of {choices}, or module:callable, got {name!r}.")
    make = _callable(module, attribute)
    try:
        needed = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.kind < 2]
        model = make(queue) if len(needed) == 1 else make()
    except Exception as error:
        raise NetclError(f"warm: {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, Module):
        raise NetclError(f"warm: expected {name} to return a Module, got {type(model).__name__}.")
    return model


def _callable(module: str, attribute: str) -> Any:
    """What makes a model, from a module in the current folder or installed."""
    from netcl.core.errors import NetclError

    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise NetclError(
            f"warm: expected a module that can be imported, got {module!r}: {type(error).__name__}: {error_text(error)}"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        what = "has no such name" if found is None else f"is of type {type(found).__name__}"
        raise NetclError(f"warm: expected a callable {attribute!r} in {module}, which {what}.")
    return found


def _shape(args: argparse.Namespace, model: Any) -> tuple[int, ...]:
    """The shape of one input where the model leaves no doubt: features of a first linear layer, images of the zoo's."""
    from netcl.core.errors import NetclError
    from netcl.nn import Linear, ResNet

    first = next((m for m in model.modules() if not list(m.children())), None)
    if isinstance(model, ResNet):
        return IMAGES
    if isinstance(first, Linear):
        return (first.in_features,)
    raise NetclError(f"warm: expected --shape, of one input of {type(model).__name__} without the batch, got none.")


def _step(args: argparse.Namespace, model: Any, queue: Any) -> Any:
    """step(shape): run the model once, and with --train a whole step of training."""
    import numpy as np

    import netcl.autograd as ag
    from netcl.core.tensor import Tensor

    dtype, call = args.dtype or "float32", ag.jit_compile(model) if args.jit else model
    rng, loss, optimizer = np.random.default_rng(0), _loss(args.loss, queue), None
    if args.train:
        optimizer = _optimizer(args, model.train())
    else:
        model.eval()

    def made_up(shape: tuple[int, ...]) -> Any:
        if args.tokens:
            return ag.tensor(Tensor.from_host(queue, np.zeros(shape, np.int64)))
        return ag.tensor(Tensor.from_host(queue, rng.standard_normal(shape, np.float32)).astype(dtype))

    def step(shape: tuple[int, ...]) -> None:
        if optimizer is None:
            with ag.no_grad():
                call(made_up(shape))
            return
        with ag.Tape() as tape:
            found = loss(call(made_up(shape)))
        tape.backward(found)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _loss(name: str, queue: Any) -> Any:
    """loss(outputs) with targets made up: class 0 for (N, C, ...), or zeros like the outputs."""
    import numpy as np

    import netcl.autograd as ag
    from netcl.core.errors import NetclError
    from netcl.core.tensor import Tensor

    if name not in LOSSES:
        raise NetclError(f"warm: expected --loss among {', '.join(LOSSES)}, got {name!r}.")

    def loss(outputs: Any) -> Any:
        shape = outputs.shape
        if name in OF_CLASSES:
            target = Tensor.from_host(queue, np.zeros(shape[:1] + shape[2:], np.int64))
        else:
            target = Tensor.from_host(queue, np.zeros(shape, np.float32)).astype(outputs.dtype)
        return getattr(ag, name)(outputs, target)

    return loss


def _optimizer(args: argparse.Namespace, model: Any) -> Any:
    """The optimizer of the model's parameters."""
    import netcl.optim as optim
    from netcl.core.errors import NetclError

    make = getattr(optim, args.optimizer, None)
    if not (isinstance(make, type) and issubclass(make, optim.Optimizer) and make is not optim.Optimizer):
        known = [n for n in optim.__all__ if isinstance(getattr(optim, n), type)]
        names = [n for n in known if issubclass(getattr(optim, n), optim.Optimizer) and n != "Optimizer"]
        raise NetclError(f"warm: expected --optimizer among {', '.join(sorted(names))}, got {args.optimizer!r}.")
    if not list(model.parameters()):
        raise NetclError(f"warm: expected a model with parameters for --train, got {type(model).__name__}.")
    options: dict[str, Any] = dict(args.options)
    try:
        return make(model.parameters(), **{"lr": 1e-3, **options})
    except (TypeError, ValueError) as error:
        raise NetclError(f"warm: {args.optimizer} does not take {options or 'lr'}: {error}") from None
