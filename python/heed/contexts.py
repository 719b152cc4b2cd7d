"""What surrounds a call and changes what it is to compute: rules of a tensor's class, autocast, forward-mode differentiation, transforms of torch.func."""

import torch
from torch._functorch import pyfunctorch

_DEFAULT = torch.Tensor.__torch_function__.__func__
_DISABLED = torch._C._disabled_torch_function_impl


def has_own_rules(*arguments):
    """Whether the class of an argument has a __torch_function__ that is not torch.Tensor's: it is asked what a function of PyTorch gives. Modes, as
    torch.set_default_device has one, do not count: they see Heed's operator."""
    rules = (getattr(type(argument), "__torch_function__", _DISABLED) for argument in arguments)
    return any(rule is not _DISABLED and getattr(rule, "__func__", rule) is not _DEFAULT for rule in rules)


def _has_tangent(tensor):
    """Whether forward-mode differentiation follows a tensor, at whatever level of nested transforms."""
    functorch = torch._C._functorch
    transform = functorch.peek_interpreter_stack()
    # Of a batch PyTorch does not say it.
    if (transform is None or transform.key() != functorch.TransformType.Vmap) and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    if transform is None:
        return False
    with pyfunctorch.temporarily_pop_interpreter_stack():
        return _has_tangent(functorch.get_unwrapped(tensor) if functorch.maybe_get_level(tensor) == transform.level() else tensor)


def refuse_tangents(name, *arguments):
    """Raises NotImplementedError, whose sentence begins with `name`, where a tensor has a tangent of forward-mode differentiation."""
    if torch.autograd.forward_ad._current_level >= 0 and any(isinstance(argument, torch.Tensor) and _has_tangent(argument) for argument in arguments):
        raise NotImplementedError(
            f"{name} has no forward-mode derivative (torch.func.jvp, jacfwd, torch.autograd.forward_ad); "
            "torch.nn.functional.scaled_dot_product_attention has one under sdpa_kernel(SDPBackend.MATH)"
        )


def _levels_of(tensor):
    """A tensor, and what nested transforms of torch.func have wrapped in it, the outermost last."""
    functorch = torch._C._functorch
    yield tensor
    while functorch.maybe_get_level(tensor) >= 0:
        tensor = functorch.get_unwrapped(tensor)
        yield tensor


def wants_gradient(*tensors):
    """Whether a gradient of any of the tensors, of which some may be None, is wanted at any level of nested transforms: a tensor of torch.vmap never requires one."""
    if not torch.is_grad_enabled():
        return False
    tensors = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.requires_grad for tensor in tensors):
        return True
    if torch.compiler.is_compiling():  # a trace cannot look below torch.vmap
        return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)
    if torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(level.requires_grad for tensor in tensors for level in _levels_of(tensor))


def refuse_gradients_of_transforms(name, *arguments):
    """Raises NotImplementedError, whose sentence begins with `name`, where torch.func.grad, or another transform that is made of it, follows a tensor."""
    functorch = torch._C._functorch
    if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is None or not torch.is_grad_enabled():
        return
    tensors = (argument for argument in arguments if isinstance(argument, torch.Tensor))
    if any(functorch.is_gradtrackingtensor(level) and level.requires_grad for tensor in tensors for level in _levels_of(tensor)):
        raise NotImplementedError(
            f"{name} has no gradient for transforms of torch.func (grad, vjp, jacrev, hessian); torch.autograd.grad and backward() have one, also around torch.vmap, "
            "and torch.nn.functional.scaled_dot_product_attention has one for all of them"
        )


_CAST = (torch.float16, torch.bfloat16, torch.float32)


def autocast(query, key, value, of_output):
    """Q, K, V and the gate, the first of `of_output`, as autocast has them for the attention of PyTorch: in its type where it is on for their device, so that the
    checks and the report see what a kernel does. As they are where one of Q, K and V has 8 or 64 bits."""
    if not torch._C._is_any_autocast_enabled():
        return query, key, value, of_output
    tensors = query, key, value
    if not all(isinstance(tensor, torch.Tensor) and tensor.dtype in _CAST for tensor in tensors):
        return *tensors, of_output
    device = query.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return *tensors, of_output
    dtype, (gate, *others) = torch.get_autocast_dtype(device), of_output
    if isinstance(gate, torch.Tensor) and gate.dtype in _CAST:
        gate = gate.to(dtype)
    return *(tensor.to(dtype) for tensor in tensors), (gate, *others)
