"""What surrounds a call and changes what it is to compute: rules of a tensor's class, autocast, forward-mode differentiation."""

import torch

_DEFAULT = torch.Tensor.__torch_function__.__func__
_DISABLED = torch._C._disabled_torch_function_impl


def has_own_rules(*arguments):
    """Whether the class of an argument has a __torch_function__ that is not torch.Tensor's: it is asked what a function of PyTorch gives. Modes, as
    torch.set_default_device has one, do not count: they see Heed's operator."""
    rules = (getattr(type(argument), "__torch_function__", _DISABLED) for argument in arguments)
    return any(rule is not _DISABLED and getattr(rule, "__func__", rule) is not _DEFAULT for rule in rules)
