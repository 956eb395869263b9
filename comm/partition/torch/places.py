"""Names the layer, file and line of an operator or an error in a model."""

import re
from pathlib import Path

import torch
from torch import fx, nn

SKIPPED = ("<", *(str(Path(path).parent) for path in (torch.__file__, __file__)))  # no code of the user
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def find_layer(call: fx.Node) -> str:
    """Return the path of the module that an operator belongs to, without the wrapper of model and loss."""
    stack = call.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()), ("",))[0])
    return path.removeprefix("model").removeprefix(".") or ("" if path else "loss")


def find_place(call: fx.Node) -> str:
    """Return an operator's layer, and the last line of the user's code that leads to it."""
    frames = [frame for frame in FRAME.findall(call.meta.get("stack_trace") or "") if not frame[0].startswith(SKIPPED)]
    line = f" ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else ""
    return (find_layer(call) or "the model") + line


def find_error(error: BaseException, model: nn.Module) -> str:
    """Return the layer and the line of the user's code in which an error was raised; "" if it was not in the model."""
    names = {id(module): name for name, module in model.named_modules()}
    layer, line, trace = None, "", error.__traceback__
    while trace is not None:
        frame, path = trace.tb_frame, trace.tb_frame.f_code.co_filename
        layer = names.get(id(frame.f_locals.get("self")), layer)
        if layer is not None and not path.startswith(SKIPPED):
            line = f" ({Path(path).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return "" if layer is None else (layer or "the model") + line
