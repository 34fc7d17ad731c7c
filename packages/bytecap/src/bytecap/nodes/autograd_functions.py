"""torch.autograd.Function: its forward and its backward are evaluated, and become a custom function of the capture.

    Function.apply(*args)  ->  results = custom.<name>(*operands, captured)

The class's own Python runs at capture only. What it reads is guarded like everything else; what it changes in the
forward is replayed like everything else. A backward that changes something outside, or cannot be evaluated, refuses
the call.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from absint import AbstractTensor
from bytecap.context_types import Tracer
from bytecap.errors import CannotCapture, UnsupportedCall
from bytecap.graph.builder import GraphBuilder, tensor_type
from bytecap.nodes.bodies import recording, states_of_effects, wires
from bytecap.nodes.wrapper_calls import call_wrapper
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import Constant, PythonRaise, Value
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.instances.exceptions import UnknownText
from bytecap.objects.instances.objects import ObjectValue
from stagewire.capture import CustomFunction
from stagewire.graph import Arg, Graph, Ref, free_names
from stagewire.graph import Value as WireValue

_OF_DTENSORS = "torch.distributed.tensor."
"""Where the Functions are by which torch makes DTensors and changes their layout: as good as operators of the class."""
GRADIENT_ORDERS = 2
"""How often a gradient can be differentiated in turn where backwards apply Functions, which may do so for ever."""


class Context:
    """The `ctx` of a captured Function: evaluated like any user's class."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: Any = ()
        self.dirty: Any = ()
        self.non_differentiable: Any = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """See torch.autograd.function.FunctionCtx."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """See torch.autograd.function.FunctionCtx; forward-mode gradients are not captured."""

    def mark_dirty(self, *tensors: Any) -> None:
        """See torch.autograd.function.FunctionCtx."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """See torch.autograd.function.FunctionCtx."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """See torch.autograd.function.FunctionCtx; zeros stand for gradients that do not arrive."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> Any:
        """What `save_for_backward` was given."""
        return self.to_save


def apply_function(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """`cls.apply(*args)`."""
    if tracer.graph.is_transformed:
        raise UnsupportedCall("a torch.autograd.Function under a transform of torch.func")
    if kwargs:
        raise tracer.raises(TypeError, "apply() takes no keyword arguments")
    real: Any = cls.concrete()
    if str(real.__module__).startswith(_OF_DTENSORS):
        return call_wrapper(tracer, real.apply, list(args), {})
    return _Application(tracer, cls, list(args)).run()


class _Application:
    """One call of `apply`."""

    def __init__(self, tracer: Tracer, cls: Value, args: list[Value]) -> None:
        self.tracer = tracer
        self.cls = cls
        self.real: Any = cls.concrete()
        self.apart = self.real.setup_context is not torch.autograd.Function.setup_context
        self.args = self._with_defaults(args) if self.apart else args
        self.outer = tracer.graph
        self.operands = [arg for arg in self.args if isinstance(arg, TensorValue)]
        if any(isinstance(arg, WrapperValue) and arg.is_linked for arg in self.args):
            raise UnsupportedCall(f"{self.real.__qualname__}.apply() of a wrapper that requires grad")
        self.order = self.outer.gradient_order
        self.differentiable = self.order <= GRADIENT_ORDERS and any(map(self._needs_gradient, self.operands))

    def _needs_gradient(self, value: Value) -> bool:
        """Inside of a backward, gradients may be differentiated by whatever they are computed of."""
        if not isinstance(value, TensorValue):
            return False
        if self.order:
            return value.abstract.is_floating_point() or value.abstract.is_complex()
        return torch.is_grad_enabled() and bool(value.abstract.requires_grad)

    def run(self) -> Value:
        tracer = self.tracer
        needs = [Constant(self._needs_gradient(arg)) for arg in self.args]
        ctx = tracer.objects.wrap(Context, None).call(tracer, [TupleValue(list(needs))], {})
        self.forward, returned = self._forward(ctx)
        items = returned.values(tracer) if isinstance(returned, TupleValue) else [returned]
        self.results = [item for item in items if isinstance(item, TensorValue)]
        self._check_results(items)
        self.marked = {name: self._marked(ctx, name) for name in ("to_save", "dirty", "non_differentiable")}
        self.backward, self.gradients = self._backward_if_any(ctx, items)
        function = self._function(*self._kept())
        made = iter(self._record(function, self._abstract_results()))
        values = [next(made) if isinstance(item, TensorValue) else item for item in items]
        return TupleValue(values) if isinstance(returned, TupleValue) else values[0]

    def _with_defaults(self, args: list[Value]) -> list[Value]:
        """The arguments with the forward's default values, which `setup_context` is given too."""
        parameters = list(inspect.signature(self.real.forward).parameters.values())[len(args) :]
        rest = [p.default for p in parameters if p.default is not inspect.Parameter.empty]
        return [*args, *[self.tracer.objects.wrap(default, None) for default in rest]]

    # -- the two directions

    def _forward(self, ctx: ObjectValue) -> tuple[GraphBuilder, Value]:
        tracer = self.tracer
        with self._body() as body:
            method = self.cls.get_attribute(tracer, "forward")
            if not self.apart:
                return body, method.call(tracer, [ctx, *self.args], {})
            returned = method.call(tracer, list(self.args), {})
            setup = self.cls.get_attribute(tracer, "setup_context")
            setup.call(tracer, [ctx, TupleValue(list(self.args)), returned], {})
            return body, returned

    def _backward_if_any(self, ctx: ObjectValue, items: list[Value]) -> tuple[GraphBuilder | None, list[Arg]]:
        """None where nothing is differentiated; and inside of another backward where it cannot be evaluated, since few
        programs differentiate their gradients (those that do are told then)."""
        if not self.differentiable:
            return None, []
        if not self.order:
            return self._backward(ctx, items)
        before = states_of_effects(self.tracer)
        functions, handled = len(self.outer.functions), list(self.tracer.frames.handled)
        try:
            return self._backward(ctx, items)
        except (CannotCapture, PythonRaise):
            if states_of_effects(self.tracer) != before:
                raise
            del self.outer.functions[functions:]
            self.tracer.frames.handled[:] = handled
            return None, []

    def _backward(self, ctx: ObjectValue, items: list[Value]) -> tuple[GraphBuilder, list[Arg]]:
        tracer = self.tracer
        self._refuse_missing_gradients(ctx, items)
        tangents = [self._tangent(item) if isinstance(item, TensorValue) else Constant(None) for item in items]
        self.tangents = [tangent for tangent in tangents if isinstance(tangent, TensorValue)]
        before = states_of_effects(tracer)
        order = 0 if _is_once_differentiable(self.real.backward) else self.order + 1
        with self._body(order) as body:
            found = self.cls.get_attribute(tracer, "backward").call(tracer, [ctx, *tangents], {})
        if states_of_effects(tracer) != before:
            raise UnsupportedCall(f"the backward of {self.real.__qualname__} changes an object outside of it")
        gradients = found.values(tracer) if isinstance(found, TupleValue) else [found]
        if len(gradients) < len(self.args) or any(not extra.is_none() for extra in gradients[len(self.args) :]):
            raise UnsupportedCall(f"the backward of {self.real.__qualname__} returns {len(gradients)} gradients")
        return body, [self._gradient(a, g) for a, g in zip(self.args, gradients, strict=False) if a in self.operands]

    def _refuse_missing_gradients(self, ctx: ObjectValue, items: list[Value]) -> None:
        """A backward that is told which gradients are missing may do something else then; it is evaluated with all."""
        materialize = ctx.get_attribute(self.tracer, "materialize_grads")
        constant = self._marked(ctx, "non_differentiable")
        count = sum(isinstance(item, TensorValue) and item not in constant for item in items)
        if count > 1 and not materialize.truth(self.tracer):
            raise UnsupportedCall(f"{self.real.__qualname__}: set_materialize_grads(False) with {count} results")

    def _gradient(self, operand: Value, gradient: Value) -> Arg:
        if isinstance(gradient, TensorValue):
            return Ref(gradient.name) if self._needs_gradient(operand) else None
        if not gradient.is_none():
            raise UnsupportedCall(f"the backward of {self.real.__qualname__} returns a {gradient.describe()}")
        return None

    def _tangent(self, result: TensorValue) -> TensorValue:
        """The gradient that the backward is given for a result: a row-major tensor of its shape."""
        with self.tracer.mode, torch.no_grad():
            abstract = torch.empty(result.abstract.shape, dtype=result.abstract.dtype, device=result.abstract.device)
        return self.tracer.inputs.tensor_of(abstract, self.outer.name("gradient"))

    def _body(self, gradient_order: int = 0) -> contextlib.AbstractContextManager[GraphBuilder]:
        """Record what is evaluated as a body of its own, without gradients."""
        return recording(self.tracer, GraphBuilder(self.outer, gradient_order=gradient_order), grad=False)

    # -- what was said on ctx

    def _marked(self, ctx: ObjectValue, name: str) -> list[TensorValue]:
        found = ctx.get_attribute(self.tracer, name)
        return [item for item in found.values(self.tracer) if isinstance(item, TensorValue)]

    def _check_results(self, items: list[Value]) -> None:
        if not self.results or len({id(result) for result in self.results}) != len(self.results):
            raise UnsupportedCall(f"{self.real.__qualname__}.apply() that returns no tensor, or one of them twice")
        for item in items:
            if not isinstance(item, (TensorValue, Constant)):
                raise UnsupportedCall(f"{self.real.__qualname__}.apply() that returns a {item.describe()}")

    def _kept(self) -> tuple[list[str], int]:
        """The values that the backward reads, and how many of them are saved tensors (they come first)."""
        if self.backward is None:
            return [], 0
        tangents = {tangent.name for tangent in self.tangents}
        wanted = free_names(self.backward.nodes, self.gradients, tangents)
        saved = {tensor.name for tensor in self.marked["to_save"]}
        first = [name for name in wanted if name in saved]
        return [*first, *[name for name in wanted if name not in saved]], len(first)

    # -- the document, and the node

    def _function(self, kept: list[str], saved: int) -> CustomFunction:
        forward, backward, results = self.forward, self.backward, self.results
        # A tensor that is given twice has its name once, in the place of the first.
        operands = [operand.name for operand in self.operands]
        operands = [self.outer.name(n) if n in operands[:at] else n for at, n in enumerate(operands)]
        outputs: list[Arg] = [Ref(name) for name in (*[result.name for result in results], *kept)]
        defined = forward.defined
        self.captured = free_names(forward.nodes, outputs, operands)
        for result in results:
            if result.name not in defined and result.name not in operands:
                raise UnsupportedCall(f"{self.real.__qualname__}.apply() that returns an outside tensor")
        inputs = [
            *[WireValue(name, tensor_type(x.abstract)) for name, x in zip(operands, self.operands, strict=True)],
            *wires(map(self.tracer.inputs.named, self.captured)),
        ]
        types = {value.name: value for value in (*inputs, *defined.values())}
        back = None
        if backward is not None:
            given = (*wires(self.tangents), *[types[name] for name in kept])
            back = Graph(given, tuple(backward.nodes), tuple(self.gradients))
        return CustomFunction(
            name=self.outer.name(self.real.__name__),
            operands=len(operands),
            results=len(results),
            forward=Graph(tuple(inputs), tuple(forward.nodes), tuple(outputs)),
            backward=back,
            saved=saved,
            non_differentiable=_numbers(results, self.marked["non_differentiable"]),
            written=_numbers(results, self.marked["dirty"]),
            once=_is_once_differentiable(self.real.backward),
        )

    def _abstract_results(self) -> tuple[AbstractTensor, ...]:
        """The results with the history that autograd gives them."""
        marks = [[tensor.abstract for tensor in self.marked[name]] for name in ("dirty", "non_differentiable")]
        operands = [operand.abstract for operand in self.operands]
        try:
            with self.tracer.mode:
                return Results.apply([result.abstract for result in self.results], *marks, *operands)
        except (RuntimeError, TypeError, ValueError) as error:
            raise self.tracer.raises(type(error), UnknownText(error)) from None

    def _record(self, function: CustomFunction, outs: tuple[AbstractTensor, ...]) -> list[TensorValue]:
        """The node; a result that is made inside keeps its name, so that it is one value inside and out."""
        tracer, defined = self.tracer, self.forward.defined
        names = [r.name if r.name in defined else self.outer.name(function.name) for r in self.results]
        wires = tuple(WireValue(name, tensor_type(out)) for name, out in zip(names, outs, strict=True))
        operands = [operand.name for operand in self.operands]
        self.outer.apply_custom(function, operands, self.captured, wires, tracer.line(), defined)
        return [tracer.inputs.tensor_of(out, name) for out, name in zip(outs, names, strict=True)]


class Results(torch.autograd.Function):
    """Gives finished results the history of a Function's results."""

    @staticmethod
    def forward(ctx: Any, results: list[Any], dirty: list[Any], constant: list[Any], *operands: Any) -> Any:
        ctx.mark_dirty(*dirty)
        ctx.mark_non_differentiable(*constant)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("the evaluator differentiates nothing")


def _numbers(results: list[TensorValue], marked: list[TensorValue]) -> tuple[int, ...]:
    return tuple(number for number, result in enumerate(results) if any(result is tensor for tensor in marked))


def _is_once_differentiable(backward: Any) -> bool:
    """Whether the backward is wrapped by torch.autograd.function.once_differentiable."""
    while backward is not None:
        if getattr(backward, "__code__", None) is _ONCE:
            return True
        backward = getattr(backward, "__wrapped__", None)
    return False


_ONCE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__
