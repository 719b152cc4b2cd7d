"""heed.HostKV: keys and values in host memory, beyond what a GPU holds, and exact attention over all of them."""

import ctypes
import operator

import torch

from heed import c_api, checks, features, masks, offload_api

FEW_ROWS = 16  # a call of at most so many rows is decoding: the processors attend to a share of the keys
_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
# Element types of pages of 8 bits: the number of heed_dtype, and the dtype of a tensor that is quantised already.
_KV_DTYPES = {"fp8_e4m3": (3, torch.float8_e4m3fn), "fp8_e5m2": (4, torch.float8_e5m2), "int8": (5, torch.int8)}
_LAYOUTS = {"HND": offload_api.HND, "NHD": offload_api.NHD}
_MOST_KEYS = 2**31 - 1  # that a kernel counts
_COPIED_AT_ONCE = 64  # pages of each sequence
_RATES = ("link_rate", "host_rate", "device_rate", "device_flops")


def _pages(tokens, page_size):
    return -(-tokens // page_size)


def _whole(name, given, least, most):
    """A whole number that a field of a struct holds: ctypes takes larger ones by their lowest bits. Raises TypeError and ValueError."""
    try:
        number = operator.index(given)
    except TypeError as error:
        raise TypeError(f"heed.HostKV: {name} is {given!r}; it must be a whole number") from error
    if not least <= number <= most:
        raise ValueError(f"heed.HostKV: {name} is {number}; it must be {least} to {most}")
    return number


def _factors(name, given, heads_kv, layers, kv_dtype):
    """Scale factors as an array of ctypes, None for none. Raises ValueError for those that cannot be."""
    if given is None:
        return None
    if kv_dtype is None:
        raise ValueError(f'heed.HostKV: {name} is given, and pages are not of 8 bits; give kv_dtype="fp8_e4m3", or leave {name} out')
    try:
        factors = torch.as_tensor(given, dtype=torch.float32, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"heed.HostKV: {name} is {given!r}; it must be a number, or a tensor of them") from error
    if tuple(factors.shape) not in ((), (1,), (heads_kv,), (layers, heads_kv)):
        raise ValueError(f"heed.HostKV: {name} is {tuple(factors.shape)}; it must be one factor, ({heads_kv},) of the heads of keys, or ({layers}, {heads_kv}) of layers and heads")
    numbers = factors.flatten().tolist()
    return (ctypes.c_float * len(numbers))(*numbers)


class HostKV:
    """Keys and values of a batch of sequences, layer by layer, in pages of host memory; some are on the GPU besides.

    kv = heed.HostKV(heads=32, heads_kv=8, dim=128, layers=32, host_tokens=1 << 20, device_tokens=1 << 16)
    o = heed.attention(q, k, v, kv=kv.layer(3), causal=True)     # k and v come behind the keys that layer 3 has

    heads, heads_kv  query heads, and heads of keys that they share; `heads` is a multiple of `heads_kv`
    dim, dim_v       of a head of K and of V; dim_v is dim by default
    layers           of the model
    batch            sequences
    host_tokens      keys that host memory has room for, of all sequences together, each with its layers
    device_tokens    keys that the GPU holds besides: the granted memory, 0 for none. The first sink_tokens of a sequence stay there, and the
                     newest keys
    page_size        keys of a page, a multiple of 8
    page_layout      "HND" (pages, heads_kv, page_size, dim) or "NHD" (pages, page_size, heads_kv, dim)
    dtype            float16, bfloat16 or float32, of queries and the output; of new keys and values, and of pages without kv_dtype
    kv_dtype         of pages: "fp8_e4m3", "fp8_e5m2" or "int8", half of the bytes of 16 bits in memory and over the link; None: dtype. New
                     keys of `dtype` are divided by their factor and rounded, saturating; those of torch.float8_e4m3fn, float8_e5m2 or int8 are
                     taken as they are
    k_scale, v_scale    factors that elements of pages of 8 bits are multiplied by, positive and finite: a number, (heads_kv) or (layers,
                     heads_kv) numbers; 1 by default, needed for int8
    device           "cuda", "cuda:1"; on "cpu" a GPU is simulated, whose link has link_bandwidth bytes per second and link_latency seconds
    chunk_pages, chunks    pages of one copy over the link, and device buffers for as many; 0 for the library's choice
    streamed_share   of the keys that the GPU does not hold, which decoding brings over the link; None: what the rates give. Where no
                     rate is given either, it follows what decoding steps take, and results differ by rounding from one run to the next
    threads          of the processors' part; 0: as many as this process has processors
    rates            what else is measured when the pool is made: link_rate, host_rate, device_rate (bytes per second), device_flops

    Raises ValueError and TypeError for arguments that cannot be, MemoryError where the host, the pages that it may lock, or the GPU have too
    little memory, NotImplementedError where no kernel runs there, RuntimeError for a driver that refuses.

    copy.deepcopy makes another pool of these arguments with the same keys and values.
    """

    def __init__(
        self, *, heads, dim, host_tokens, heads_kv=None, dim_v=None, layers=1, batch=1, device_tokens=0, sink_tokens=0, page_size=64, page_layout="HND",
        dtype=torch.float16, kv_dtype=None, k_scale=None, v_scale=None, device="cpu", chunk_pages=0, chunks=0, streamed_share=None, link_bandwidth=0.0, link_latency=0.0, threads=0, **rates,
    ):  # fmt: skip
        arguments = {name: given for name, given in {**locals(), **rates}.items() if name not in ("self", "rates")}
        self._arguments = {name: given.detach().clone() if isinstance(given, torch.Tensor) else given for name, given in arguments.items()}
        self._pool, self._ids = None, (ctypes.c_int64 * 0)()
        device = torch.device(device)
        if dtype not in _DTYPES:
            raise ValueError(f"heed.HostKV: dtype is {dtype}; it must be torch.float16, torch.bfloat16 or torch.float32")
        if kv_dtype is not None and kv_dtype not in _KV_DTYPES:
            raise ValueError(f"heed.HostKV: kv_dtype is {kv_dtype!r}; it must be {', '.join(map(repr, _KV_DTYPES))}, or None for that of dtype")
        if page_layout not in _LAYOUTS:
            raise ValueError(f'heed.HostKV: page_layout is {page_layout!r}; it must be "HND" or "NHD"')
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"heed.HostKV: there are no pools for a {device.type} device; give cuda, or cpu for a simulated GPU")
        unknown = set(rates) - set(_RATES)
        if unknown:
            raise TypeError(f"heed.HostKV: unknown argument {sorted(unknown)[0]}; rates are {', '.join(_RATES)}")
        sizes = {"host_tokens": host_tokens, "device_tokens": device_tokens, "sink_tokens": sink_tokens, "page_size": page_size, "batch": batch, "layers": layers}
        for name, size in sizes.items():
            least = 1 if name in ("host_tokens", "page_size", "batch", "layers") else 0
            if not isinstance(size, int) or size < least:
                raise ValueError(f"heed.HostKV: {name} is {size!r}; it must be a number, at least {least}")
        self.device, self.dtype, self.layers = device, dtype, layers
        self.heads, self.heads_kv, self.dim, self.dim_v = heads, heads if heads_kv is None else heads_kv, dim, dim if dim_v is None else dim_v
        self.kv_dtype, (number, self._quantised) = kv_dtype, _KV_DTYPES.get(kv_dtype, (0, None))
        k_factors, v_factors = (_factors(name, given, self.heads_kv, layers, kv_dtype) for name, given in (("k_scale", k_scale), ("v_scale", v_scale)))
        # A sequence ends in a page of its own.
        host_pages = _pages(host_tokens, page_size) + batch - 1
        config = offload_api.Config(
            struct_size=ctypes.sizeof(offload_api.Config), abi_version=c_api.ABI_VERSION, device_type=c_api.CUDA if device.type == "cuda" else c_api.CPU,
            device=(device.index or 0) if device.type == "cuda" else 0, dtype=_DTYPES[dtype], page_layout=_LAYOUTS[page_layout], layers=layers, heads=self.heads,
            heads_kv=self.heads_kv, dim=self.dim, dim_v=self.dim_v, page_size=page_size, host_pages=host_pages,
            device_pages=min(_pages(device_tokens, page_size), host_pages), sink_pages=min(_pages(sink_tokens, page_size), host_pages),
            chunk_pages=chunk_pages, chunks=chunks, streamed_share=-1.0 if streamed_share is None else streamed_share,
            link_bandwidth=link_bandwidth, link_latency=link_latency, threads=threads, dtype_kv=number, k_scales=k_factors, k_scale_count=len(k_factors or ()),
            v_scales=v_factors, v_scale_count=len(v_factors or ()), **rates,
        )  # fmt: skip
        self._library, self._host_pages = offload_api.library(), host_pages
        pool = ctypes.c_void_p()
        if device.type == "cuda":
            torch.cuda.init()
        with self._on_device():
            self._check(self._library.lib.heed_offload_create(ctypes.byref(config), ctypes.byref(pool)))
        self._pool = pool
        self._ids = (ctypes.c_int64 * batch)()
        self._add()

    @property
    def batch(self):
        """Sequences."""
        return len(self._ids)

    def __del__(self):
        if getattr(self, "_pool", None):
            self._library.lib.heed_offload_destroy(self._pool)

    def __reduce__(self):
        raise TypeError("heed.HostKV: a pool of pages is neither pickled nor shared by two objects; copy.deepcopy makes another one with the same keys")

    def __deepcopy__(self, memo):
        """Raises what making a pool raises. On a GPU it waits for what is queued."""
        memo[id(self)] = other = HostKV(**self._arguments)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for layer in range(self.layers):
            for key, value in self._chunks(layer):
                call = other._call(layer)
                other._set_new_keys(call, key.to(self.device), value.to(self.device))
                with self._on_device():
                    other._check(self._library.lib.heed_offload_append(other._pool, ctypes.byref(call), other._stream()))
                    if self.device.type == "cuda":
                        torch.cuda.synchronize(self.device)
        return other

    def _chunks(self, layer):
        """Keys and values of a layer as they lie in pages of the host, some of each sequence at a time: (batch, heads_kv, length, dim) and (.., dim_v)."""
        keys = self.length(layer)
        size, stride = self._arguments["page_size"], self._host_pages
        table = torch.zeros(self.batch, stride, dtype=torch.int32)
        numbers = ctypes.cast(table.data_ptr(), ctypes.POINTER(ctypes.c_int32))
        self._check(self._library.lib.heed_offload_table(self._pool, self._ids, self.batch, numbers, stride))
        addresses = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.lib.heed_offload_pages(self._pool, layer, *map(ctypes.byref, addresses)))
        is_hnd = self._arguments["page_layout"] == "HND"
        pools = []
        for address, dim in zip(addresses, (self.dim, self.dim_v)):
            dtype = self._quantised or self.dtype
            shape = (stride, self.heads_kv, size, dim) if is_hnd else (stride, size, self.heads_kv, dim)
            memory = (ctypes.c_uint8 * (stride * self.heads_kv * size * dim * dtype.itemsize)).from_address(address.value)
            pool = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
            pools.append(pool if is_hnd else pool.transpose(1, 2))
        for first in range(0, _pages(keys, size), _COPIED_AT_ONCE):
            pages = table[:, first : first + _COPIED_AT_ONCE].long()
            yield [pool.view(torch.uint8)[pages].view(pool.dtype).transpose(1, 2).flatten(2, 3)[:, :, : keys - first * size] for pool in pools]

    def layer(self, index):
        """The keys and values of one layer, as `kv` of heed.attention."""
        if not 0 <= index < self.layers:
            raise IndexError(f"heed.HostKV: there is no layer {index}; there are 0 to {self.layers - 1}")
        return HostLayer(self, index)

    def length(self, layer=0):
        """Keys of a layer, of each sequence."""
        layer, keys = _whole("layer", layer, 0, self.layers - 1), ctypes.c_int64()
        self._check(self._library.lib.heed_offload_length(self._pool, self._ids[0], layer, ctypes.byref(keys)))
        return keys.value

    def clear(self):
        """Takes all keys out of every layer."""
        for sequence in self._ids:
            self._check(self._library.lib.heed_offload_remove(self._pool, sequence))
        self._add()

    def info(self):
        """What there is and what was moved, as a dictionary with the names of heed_offload_info."""
        known = offload_api.Info(struct_size=ctypes.sizeof(offload_api.Info))
        self._check(self._library.lib.heed_offload_get_info(self._pool, ctypes.byref(known)))
        return {name: getattr(known, name) for name, _ in offload_api.Info._fields_ if name != "struct_size" and not name.startswith("reserved")}

    def explain(self):
        """Rates and where they are from, which pages are where, what decoding brings over the link and why, from how many rows on a prefill
        hides the link: lines of text."""
        explain = self._library.lib.heed_offload_explain
        text = ctypes.create_string_buffer(explain(self._pool, self._ids, len(self._ids), None, 0) + 1)
        explain(self._pool, self._ids, len(self._ids), text, len(text))
        return text.value.decode()

    def attend(self, query, key, value, *, layer=0, causal=True, window_left=None, scale=None, softcap=0.0, sinks=None, return_lse=False):
        """Attention of new rows over all keys of a layer, after new keys were put behind them.

        query       (batch, heads, len_q, dim), the last row's own key is the layer's last one. Tensors may have any strides
        key, value  (batch, heads_kv, len_k, dim) and (.., dim_v), new keys of `dtype`, or both quantised as kv_dtype says; None and None for none
        causal      whether a row sees no key after its own one; window_left: how many keys before it it sees, None for all
        scale       of the scores; 1 / sqrt(dim) by default. One of zero or less takes a copy of the queries

        Calls of at most 16 rows are decoding, others a prefill (docs/long-contexts.md). Returns O as `query` lies, or (O, log-sum-exp). Raises
        as heed.attention does, MemoryError where the pool is full.
        """
        batch, layer = len(self._ids), _whole("layer", layer, 0, self.layers - 1)
        window_left = -1 if window_left is None else _whole("window_left", window_left, -1, _MOST_KEYS)
        self._check_tensor("query", query, (batch, self.heads, None, self.dim))
        if (key is None) != (value is None):
            raise ValueError("heed.HostKV: key and value come together, or both are None")
        if key is not None:
            self._check_tensor("key", key, (batch, self.heads_kv, None, self.dim), self._quantised)
            self._check_tensor("value", value, (batch, self.heads_kv, key.shape[2], self.dim_v), self._quantised)
            if key.dtype != value.dtype:
                raise ValueError(f"heed.HostKV: key is {key.dtype} and value {value.dtype}; quantise both, or none")
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value, sinks) if isinstance(tensor, torch.Tensor)):
            raise NotImplementedError("heed.HostKV: keys in host memory have no gradients; call it under torch.no_grad()")
        if sinks is not None:
            if not isinstance(sinks, torch.Tensor):
                raise TypeError(f"heed.HostKV: sinks must be a Tensor, not {type(sinks).__name__}")
            if sinks.shape != (self.heads,):
                raise ValueError(f"heed.HostKV: sinks is {tuple(sinks.shape)}; it must be ({self.heads},)")
            sinks = features.converted("heed.HostKV", "sinks", sinks.resolve_neg().to(query.device), torch.float32)
        query, scale = checks.of_positive_scale("heed.HostKV", query.resolve_neg(), scale)
        masks.check_scale("heed.HostKV", scale)
        query = c_api.with_strides(query) if query.stride(3) == 1 else query.contiguous()
        o = torch.empty_like(query) if self.dim == self.dim_v else query.new_empty(*query.shape[:3], self.dim_v)
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device) if return_lse else None
        call = self._call(layer, len_q=query.shape[2], window_left=window_left)
        call.q, call.o, call.q_strides, call.o_strides = query.data_ptr(), o.data_ptr(), c_api.strides_of(query), c_api.strides_of(o)
        call.mask = offload_api.CAUSAL if causal else offload_api.NO_MASK
        call.scale, call.softcap = scale or 0.0, softcap or 0.0
        call.lse = lse.data_ptr() if return_lse else None
        call.sinks = sinks.data_ptr() if sinks is not None else None
        if key is not None and key.shape[2] > 0:
            key, value = c_api.with_strides(key.resolve_neg()), c_api.with_strides(value.resolve_neg())
            self._set_new_keys(call, key, value)
        function = self._library.lib.heed_offload_decode if query.shape[2] <= FEW_ROWS else self._library.lib.heed_offload_prefill
        with self._on_device():
            self._check(function(self._pool, ctypes.byref(call), self._stream()))
        return (o, lse) if return_lse else o

    def _call(self, layer, **fields):
        return offload_api.Call(struct_size=ctypes.sizeof(offload_api.Call), layer=layer, batch=self.batch, sequences=self._ids, **fields)

    def _set_new_keys(self, call, key, value):
        """The tensors must live as long as the call."""
        call.len_k, call.k, call.v = key.shape[2], key.data_ptr(), value.data_ptr()
        call.k_strides, call.v_strides = c_api.strides_of(key), c_api.strides_of(value)
        call.dtype_kv = _KV_DTYPES[self.kv_dtype][0] if key.dtype == self._quantised else 0

    def _stream(self):
        return torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None

    def _add(self):
        for i in range(len(self._ids)):
            number = ctypes.c_int64()
            self._check(self._library.lib.heed_offload_add(self._pool, ctypes.byref(number)))
            self._ids[i] = number.value

    def _on_device(self):
        return torch.cuda.device(self.device if self.device.type == "cuda" else -1)

    def _check_tensor(self, name, tensor, shape, quantised=None):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"heed.HostKV: {name} must be a Tensor, not {type(tensor).__name__}")
        if torch._C._functorch.is_batchedtensor(tensor):
            raise NotImplementedError(f"heed.HostKV: {name} is a tensor of torch.vmap, whose entries share one pool; call it once with all entries as a batch")
        if tensor.dim() != 4 or any(wanted is not None and size != wanted for size, wanted in zip(tensor.shape, shape)):
            wanted = ", ".join("length" if size is None else str(size) for size in shape)
            raise ValueError(f"heed.HostKV: {name} is {tuple(tensor.shape)}; it must be ({wanted})")
        if tensor.dtype not in (self.dtype, quantised or self.dtype) or tensor.device.type != self.device.type:
            wanted = self.dtype if quantised is None else f"{self.dtype} or {quantised}"
            raise ValueError(f"heed.HostKV: {name} is {tensor.dtype} on {tensor.device}; these pages are of {wanted}, for {self.device}")

    def _check(self, status):
        if status:
            sentence = self._library.lib.heed_last_error().decode()
            kinds = {1: ValueError, 2: ValueError, 3: NotImplementedError, 7: MemoryError}
            raise kinds.get(status, RuntimeError)(sentence)


class HostLayer:
    """One layer of a HostKV."""

    def __init__(self, kv, index):
        self.kv, self.index = kv, index

    def length(self):
        """Keys of each sequence."""
        return self.kv.length(self.index)


def attention(name, query, key, value, kv, causal, window, alignment, scale, softcap, sinks, return_lse, others):
    """heed.attention with `kv`. Raises ValueError and NotImplementedError for what a pool's calls do not have."""
    layer = HostLayer(kv, 0) if isinstance(kv, HostKV) else kv
    if not isinstance(layer, HostLayer):
        raise TypeError(f"{name}: kv must be a heed.HostKV or a layer of one, not {type(kv).__name__}")
    given = [argument for argument, value_of in others.items() if value_of is not None]
    if given:
        raise NotImplementedError(f"{name}: with keys in host memory there is no {given[0]}; there are causal, window, scale, softcap, sinks and return_lse")
    if alignment not in (None, "bottom_right"):
        raise ValueError(f'{name}: with keys in host memory the last row has the last key; alignment must be "bottom_right", or left out')
    left, right = masks.window_of(name, window)
    if right > 0 or (right == 0 and not causal):
        raise ValueError(f"{name}: with keys in host memory rows see no keys after their own or all of them; give causal=True, and a window of (left, 0)")
    return layer.kv.attend(query, key, value, layer=layer.index, causal=causal, window_left=None if left < 0 else left, scale=scale, softcap=softcap, sinks=sinks, return_lse=return_lse)
